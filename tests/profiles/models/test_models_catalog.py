"""`profiles.models.catalog` and `profiles.models.job`: names, files,
nonsense."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import (
    InvalidFile,
    InvalidQuestion,
    InvalidSpec,
    MeshwrightError,
    UnknownName,
    Unsupported,
)
from profiles.models.catalog import model, names
from profiles.models.job import Model, parse_model
from profiles.models.spec import (
    FAMILIES,
    BertSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    ResnetSpec,
    UnetSpec,
    VitSpec,
)

TINY = {"family": "decoder", "layers": 2, "hidden": 64, "heads": 4, "vocab": 512}


def decoder(name: str) -> tuple[Model, DecoderSpec]:
    found = model(name)
    assert isinstance(found.spec, DecoderSpec)
    return found, found.spec


@pytest.mark.parametrize("name", names())
def test_each_model_loads_and_is_written_back(name: str) -> None:
    found = model(name)
    assert found.name == name == name.lower()
    assert found.source
    document = {**asdict(found.spec), "seq_len": found.seq_len}
    copy = parse_model(json.loads(json.dumps(document)), what="copy", name=name)
    assert (copy.spec, copy.seq_len) == (found.spec, found.seq_len)


def test_every_family_has_a_model() -> None:
    assert {model(name).spec.family for name in names()} == set(FAMILIES)


def test_the_contracts_gpt_13b() -> None:
    found, spec = decoder("gpt-13b")
    assert (spec.layers, spec.hidden, spec.heads) == (40, 5120, 40)
    assert (found.seq_len, found.global_batch, spec.vocab) == (2048, 1536, 51200)
    assert (spec.position, spec.max_positions, spec.norm) == (
        "learned",
        2048,
        "layernorm",
    )
    assert spec.tied_embeddings
    assert spec.attention_bias
    assert spec.output_bias
    assert spec.mlp_bias
    assert not spec.gated_mlp
    assert (spec.dropout, spec.activation, spec.ffn_hidden) == (0.1, "gelu", 20480)


@pytest.mark.parametrize("name", [n for n in names() if n.startswith("gpt-")])
def test_gpt_defaults(name: str) -> None:
    found, spec = decoder(name)
    if name in ("gpt-tiny", "gpt-mini") or name.startswith("gpt-oss-"):
        return
    assert (found.seq_len, found.global_batch, spec.vocab) == (2048, 1536, 51200)


def test_the_models_for_small_machines() -> None:
    shapes = {}
    for name in ("gpt-tiny", "gpt-mini"):
        found, spec = decoder(name)
        shapes[name] = (spec.layers, spec.hidden, spec.heads, found.seq_len, spec.vocab)
    assert shapes == {
        "gpt-tiny": (4, 256, 8, 256, 512),
        "gpt-mini": (8, 512, 8, 256, 4096),
    }


# layers, hidden, heads (Narayanan et al., SC'21, table 1)
SC21 = {
    "gpt-1.7b": (24, 2304, 24),
    "gpt-3.6b": (30, 3072, 32),
    "gpt-7.5b": (36, 4096, 32),
    "gpt-18.4b": (40, 6144, 48),
    "gpt-39b": (48, 8192, 64),
    "gpt-76.1b": (60, 10240, 80),
    "gpt-145.6b": (80, 12288, 96),
    "gpt-310.1b": (96, 16384, 128),
    "gpt-529.6b": (105, 20480, 128),
    "gpt-1t": (128, 25600, 160),
}


@pytest.mark.parametrize("name", SC21)
def test_shapes_of_sc21(name: str) -> None:
    _, spec = decoder(name)
    assert (spec.layers, spec.hidden, spec.heads) == SC21[name]


def test_llamas_are_llamas() -> None:
    for name in (name for name in names() if name.startswith("llama")):
        _, spec = decoder(name)
        assert (spec.norm, spec.position, spec.activation) == (
            "rmsnorm",
            "rotary",
            "silu",
        )
        assert spec.gated_mlp
        assert spec.max_positions == 0
        biases = (spec.attention_bias, spec.output_bias, spec.mlp_bias)
        assert biases == (False, False, False)
        assert spec.tied_embeddings == name.startswith("llama3.2")
    sequences = {n: model(n).seq_len for n in ("llama-7b", "llama2-7b", "llama3-8b")}
    assert list(sequences.values()) == [2048, 4096, 8192]


def test_specs_that_are_not_priced_yet_hold_their_shapes() -> None:
    _, mixtral = decoder("mixtral-8x7b")
    assert mixtral.moe is not None
    assert (mixtral.moe.experts, mixtral.moe.experts_per_token) == (8, 2)
    _, deepseek = decoder("deepseek-v3")
    assert deepseek.mla is not None
    assert deepseek.mla.kv_rank == 512
    t5, bert, albert = (model(n).spec for n in ("t5-11b", "bert-large", "albert-large"))
    assert isinstance(t5, EncoderDecoderSpec)
    assert isinstance(bert, BertSpec)
    assert isinstance(albert, BertSpec)
    assert (bert.shared_layers, albert.shared_layers) == (1, 24)
    vit, unet, resnet = (model(n) for n in ("vit-large", "unet-3d", "resnet-50"))
    assert isinstance(vit.spec, VitSpec)
    assert vit.seq_len == (vit.spec.image_size // vit.spec.patch_size) ** 2 + 1
    assert isinstance(unet.spec, UnetSpec)
    assert unet.spec.dimensions == 3
    assert isinstance(resnet.spec, ResnetSpec)
    assert resnet.spec.blocks == (3, 4, 6, 3)


def test_names_are_found_in_any_case_and_by_alias() -> None:
    assert model("GPT-39B") is model("gpt-39.1b") is model("gpt-39b")
    assert model("llama3.3-70b").spec == model("llama3-70b").spec


def test_a_module_without_a_factory_is_told_how_it_is_named() -> None:
    with pytest.raises(InvalidQuestion, match=r"package\.module:factory"):
        model("mine.models:")


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean gpt-13b"):
        model("gpt-13bb")
    with pytest.raises(Unsupported, match="give --model my_package"):
        model("my_package.models:build")


def test_a_model_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**TINY, "seq_len": 128, "notes": "a test"}))
    found = model(str(path))
    assert (found.name, found.seq_len, found.global_batch) == ("mine", 128, 1024)
    assert found.spec == DecoderSpec(
        layers=2,
        hidden=64,
        heads=4,
        vocab=512,
        ffn_hidden=256,
        kv_heads=4,
        head_dim=16,
        max_positions=128,
    )


def test_the_catalogue_goes_before_files_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt-13b").mkdir()
    assert model("gpt-13b").seq_len == 2048
    Path("own").write_text(json.dumps(TINY))
    assert model("own").name == "own"
    with pytest.raises(InvalidFile, match="no such file"):
        model("./gpt-13b")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"family": "gpt"}, InvalidSpec, "family gpt is not one of decoder,"),
        ({"family": 3}, InvalidSpec, "family 3 is not one of"),
        ({"layer": 3}, InvalidFile, "unknown key layer; did you mean layers?"),
        ({"hidden": "64"}, InvalidFile, "hidden: expected int, got str"),
        ({"hidden": 64.0}, InvalidFile, "hidden: expected int, got float"),
        ({"heads": 0}, InvalidSpec, "heads=0 does not divide hidden=64"),
        ({"heads": 5}, InvalidSpec, "does not divide hidden=64; give head_dim"),
        ({"heads": 0, "head_dim": 8}, InvalidSpec, "heads must be between 1 and"),
        ({"kv_heads": 3}, InvalidSpec, "heads=4 is not a multiple of kv_heads=3"),
        ({"layers": -1}, InvalidSpec, "layers must be between 1 and"),
        ({"layers": 10**30}, InvalidSpec, "layers must be between 1 and"),
        ({"layers": 10**9}, InvalidSpec, "layers must be between 1 and 100,000"),
        ({"norm": "batchnorm"}, InvalidSpec, "norm='batchnorm'"),
        ({"dropout": 1.5}, InvalidSpec, "dropout must be in"),
        ({"seq_len": 0}, InvalidSpec, "max_positions >= 1"),
        ({"global_batch": 0}, InvalidSpec, "global_batch must be between"),
        ({"gated_mlp": True}, InvalidFile, "missing required field ffn_hidden"),
        ({"moe": {"experts": 2}}, InvalidFile, "moe: object missing"),
        (
            {"moe": {"experts": 2, "experts_per_token": 3, "expert_ffn_hidden": 8}},
            InvalidSpec,
            "experts_per_token=3 is more than the 2 experts",
        ),
        ({"name": "\x1b[31mred"}, InvalidSpec, "printable"),
        ({"family": "resnet"}, InvalidFile, "unknown key"),
    ],
)
def test_a_wrong_model_file_is_refused(
    tmp_path: Path, change: dict[str, object], error: type[Exception], said: str
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**TINY, **change}))
    with pytest.raises(error) as caught:
        model(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        {**asdict(model("vit-large").spec), "patch_size": 15},
        {**asdict(model("albert-large").spec), "shared_layers": 5},
        {**asdict(model("t5-11b").spec), "heads": 0},
        {**asdict(model("unet-3d").spec), "dimensions": 4},
        {"family": "resnet", "blocks": []},
        {"family": "resnet", "blocks": [0]},
        {"family": "unet", "depth": 99, "features": 1, "dimensions": 3},
        {"family": "bert", "layers": 2},
    ],
)
def test_other_families_refuse_what_cannot_exist(spec: dict[str, object]) -> None:
    with pytest.raises((InvalidSpec, InvalidFile)):
        parse_model(spec, what="test")


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.integers(0, 64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["rmsnorm", "rotary", "learned", *FAMILIES])
)
keys = st.sampled_from(
    sorted(
        {name for spec in FAMILIES.values() for name in spec.__dataclass_fields__}
        | {"name", "seq_len", "global_batch", "experts", "experts_per_token", "x"}
    )
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5)
    ),
    max_leaves=12,
)


@st.composite
def mutants(draw: st.DrawFn) -> dict[str, Any]:
    """A sound model with some of its fields exchanged."""
    entry = asdict(model(draw(st.sampled_from(names()))).spec)
    return {**entry, **draw(st.dictionaries(keys, values, max_size=3))}


@given(mutants() | values)
def test_any_document_is_a_model_or_refused(document: object) -> None:
    try:
        said = parse_model(document, what="fuzz").name
    except MeshwrightError as error:
        said = str(error)
    assert "\n" not in said


@given(
    st.binary(max_size=100)
    | (mutants() | values).map(lambda one: json.dumps(one).encode())
)
def test_any_file_is_a_model_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "model.json"
    path.write_bytes(content)
    try:
        said = model(str(path)).name
    except MeshwrightError as error:
        said = str(error)
    assert "\n" not in said
