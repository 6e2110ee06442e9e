"""Families that are no decoders: sizes that papers and libraries print, and graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.simulation.flops import CONVENTIONS, block_flops, model_flops
from profiles.errors import InvalidSpec
from profiles.models.catalog import model, names
from profiles.models.job import Job, parse_model
from profiles.models.lora import Adapters
from profiles.models.param_count import graph_parameters, parameters
from profiles.models.spec import DecoderSpec, EncoderDecoderSpec, UnetSpec

OTHERS = [name for name in names() if not isinstance(model(name).spec, DecoderSpec)]

# Of classes of transformers 5.24 and torchvision 0.24, built on no device.
PARAMETERS = {
    "bert-base": 110_106_428,  # BertForPreTraining
    "bert-large": 336_226_108,
    "roberta-base": 124_697_433,  # RobertaForMaskedLM
    "roberta-large": 355_412_057,
    "t5-small": 60_506_624,  # T5ForConditionalGeneration
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "vit-base": 86_567_656,  # ViTForImageClassification
    "vit-large": 304_326_632,
    "resnet-18": 11_689_512,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
    "wide-resnet-50-2": 68_883_240,
    "wrn-28-10": 36_479_194,
}
# Of one image or sequence, forward: as fvcore and the papers count (He et al., table 1
# gives 3.8e9 for the layout without the stride in the 3×3; Dosovitskiy et al.).
GIGA_MACS = {"resnet-18": 1.81, "resnet-50": 4.09, "vit-base": 17.6, "vit-large": 61.6}
# Millions, as Zheng et al. (OSDI 2022), table 8.
ALPA = {
    "wide-resnet-250m": 250,
    "wide-resnet-1b": 1000,
    "wide-resnet-2b": 2000,
    "wide-resnet-4b": 4000,
    "wide-resnet-6.8b": 6800,
    "wide-resnet-13b": 13000,
}


def job(name: str, **sizes: Any) -> Job:
    return model(name).job(**{"global_batch": 4, **sizes})


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_class(name: str) -> None:
    assert parameters(model(name).spec).total == PARAMETERS[name]


@pytest.mark.parametrize("name", ALPA)
def test_parameters_of_alpas_wide_resnets(name: str) -> None:
    found = parameters(model(name).spec).total / 1e6
    assert found == pytest.approx(ALPA[name], rel=0.03)


@pytest.mark.parametrize("name", GIGA_MACS)
def test_forward_flops_are_those_that_are_published(name: str) -> None:
    one = job(name, global_batch=1)
    forward = sum(count * block_flops(block, one) for block, count in one.graph.blocks)
    assert forward / 2e9 == pytest.approx(GIGA_MACS[name], rel=0.003)


@pytest.mark.parametrize("name", OTHERS)
def test_every_operator_reads_what_is_made(name: str) -> None:
    graph = job(name).graph
    for block in graph.distinct():
        assert block.graph.number_of_nodes() == len(block.operators)
    assert len(graph.handed_on) == len(graph.layers) - 1
    assert all(width > 0 for width in graph.handed_on)


@pytest.mark.parametrize("name", OTHERS)
def test_six_flops_a_parameter_and_row_are_those_of_the_products(name: str) -> None:
    """The two conventions differ in norms, biases and tables alone, 4 % at most."""
    one = job(name, global_batch=1)
    by_parameters = model_flops(one, CONVENTIONS["palm"])
    assert by_parameters == pytest.approx(model_flops(one), rel=0.04)


def test_a_decoder_behind_an_encoder_has_its_own_rows() -> None:
    """t5-11b's decoder has 114 tokens for 512: FLOPs a token are those of 2·P without
    the tables, of each side at its tokens, and of attention."""
    spec = model("t5-11b").spec
    assert isinstance(spec, EncoderDecoderSpec)
    h, inner, ffn = spec.hidden, spec.heads * spec.head_dim, spec.ffn_hidden
    rows, keys, layers = 114, 512, 24
    encoder = keys * (4 * h * inner + 2 * h * ffn) + 2 * keys * keys * inner
    own = rows * (6 * h * inner + 2 * h * ffn) + 2 * rows * rows * inner
    cross = keys * 2 * h * inner + 2 * rows * keys * inner
    total = layers * (encoder + own + cross) + rows * h * spec.vocab
    one = job("t5-11b", global_batch=1)
    found = sum(count * block_flops(block, one) for block, count in one.graph.blocks)
    assert found == pytest.approx(2 * total, rel=1e-12)


def test_skips_of_a_u_net_are_one_a_level() -> None:
    graph = job("unet-2d").graph
    spec = model("unet-2d").spec
    assert isinstance(spec, UnetSpec)
    found = {skip.tensor.name: skip.elements for skip in graph.skips}
    assert found == {
        f"level{level}_out": 64 * 2**level * (512 >> level) ** 2 for level in range(4)
    }
    # At the bottom all four pass, beside what the last level down hands on.
    bottom = graph.layer_names.index(str(spec.depth - 1))
    entry = 1024 * 32**2
    assert graph.handed_on[bottom] == entry + sum(found.values())


def test_what_an_encoder_made_passes_each_decoder_layer() -> None:
    graph = job("t5-small").graph
    (skip,) = graph.skips
    first = graph.layer_names.index("6")
    assert skip.tensor.name == "encoder_out"
    decoder = 512 * 114 / 512
    widths = graph.handed_on[first : first + 5]
    assert widths == pytest.approx([decoder + 512] * 5)
    assert graph.handed_on[first + 5] == pytest.approx(decoder)


def test_layers_that_share_weights_count_once() -> None:
    graph = job("albert-large").graph
    assert [len(group) for group in graph.shared] == [24]
    alone = replace(graph, shared=())
    layer = graph_parameters(graph).layers[0][0].active
    more = graph_parameters(alone).total - graph_parameters(graph).total
    assert more == 23 * layer


@pytest.mark.parametrize(
    ("name", "seq_len", "message"),
    [
        ("vit-large", 196, "an image of 197 tokens"),
        ("resnet-50", 224, "which its spec fixes"),
        ("unet-3d", 2, "which its spec fixes"),
        ("bert-large", 513, "512 learned positions"),
        ("clip-vit-large", 64, "which its spec fixes"),
    ],
)
def test_a_length_that_cannot_be_is_refused(
    name: str, seq_len: int, message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        job(name, seq_len=seq_len)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"family": "resnet", "blocks": [3, 4], "block": "dense"}, "bottleneck"),
        ({"family": "resnet", "blocks": [2, 2], "block": "basic", "width": 2}, "outer"),
        ({"family": "resnet", "blocks": [1] * 40}, "up to 30 stages"),
        (
            {
                "family": "unet",
                "depth": 4,
                "features": 8,
                "dimensions": 2,
                "image_size": 100,
            },
            "multiple of 16",
        ),
        (
            {
                "family": "bert",
                "layers": 2,
                "hidden": 30,
                "heads": 4,
                "ffn_hidden": 8,
                "vocab": 9,
            },
            "does not divide hidden",
        ),
    ],
)
def test_shapes_that_cannot_be_are_refused(
    document: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        parse_model(document, what="model file")


def test_adapters_go_beside_products_of_transformers() -> None:
    spec = model("t5-small").spec
    one = Job(
        model="t5",
        spec=spec,
        seq_len=512,
        global_batch=4,
        adapters=Adapters(rank=8, targets=("qkv", "cross_query")),
    )
    block = one.graph.block("decoder-layer")
    narrow = block.operator("cross_query_lora_a")
    assert narrow.rows == pytest.approx(114 / 512)
    assert not narrow.frozen
    assert block.operator("mlp_up").frozen


def test_adapters_beside_convolutions_are_refused() -> None:
    plain = job("resnet-50")
    with pytest.raises(InvalidSpec, match="'conv1' to adapt"):
        _ = replace(plain, adapters=Adapters(rank=8, targets=("conv1",))).graph
