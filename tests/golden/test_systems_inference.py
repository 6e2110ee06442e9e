"""Inference: the formulas of the guides, and decoding as it was measured by others."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

import pytest

from costmodel.inference.estimate import prefill_flops, token_bytes
from costmodel.inference.kv_cache import cached_elements
from profiles.models.catalog import model
from profiles.models.param_count import parameters
from profiles.models.spec import DecoderSpec
from tests.support.rows import Obtained
from tests.support.served import asked, served


@pytest.mark.row(
    "K1",
    "bytes of cache of a token, Llama-2-70B",
    expected="327,680",
    evidence="computed",
)
def test_a_token_of_llama_2_70b_takes_327680_bytes_of_cache() -> None:
    """2 · 80 layers · 8 key-value heads · 128 · 2 bytes."""
    question = asked("llama2-70b", gpus=8, tp=8, precision="bf16")
    assert token_bytes(question) == 327_680
    assert served("llama2-70b", gpus=8, tp=8, micro_batch=3, seq_len=4096).document()[
        "memory"
    ][0]["kv_cache"] == pytest.approx(3 * 4096 * 327_680 / 8)


def test_deepseek_v3_caches_576_elements_a_layer_and_token() -> None:
    """DeepSeek-V2 (2024), section 2.1: a latent of 512 and a rotary key of 64."""
    question = asked("deepseek-v3", "hgx-h200", gpus=8, tp=8, precision="fp8")
    layers = question.job.graph.kinds.values()
    assert {cached_elements(block) for block in layers} == {576}
    assert {cached_elements(block, 8) for block in layers} == {576}  # whole on each
    assert token_bytes(question) == 576 * 61 * 2


@pytest.mark.parametrize(
    ("name", "degrees"),
    [("llama2-7b", {}), ("llama2-70b", {"gpus": 8, "tp": 8}), ("mixtral-8x7b", {})],
)
def test_prefill_takes_two_flops_a_weight_and_attention(
    name: str, degrees: dict[str, Any]
) -> None:
    """Of the weights that a token meets; the table is looked up, and the head sees the
    last token alone. Attention: 2 · layers · heads · head_dim · prompt, causal."""
    length = 1024
    found = served(
        name, "hgx-h200", prompt_len=length, new_tokens=1, **degrees
    ).document()
    spec = model(name).spec
    assert isinstance(spec, DecoderSpec)
    counted = parameters(spec)
    met = counted.active - counted.embedding - counted.head * (1 - 1 / length)
    attention = 2 * spec.layers * spec.heads * spec.head_dim * length
    flops = found["prefill"]["flops_per_token"]
    assert flops == pytest.approx(2 * met + attention, rel=1e-3)
    assert flops == pytest.approx(2 * counted.active, rel=0.1)


@pytest.mark.row(
    "K1",
    "step of decoding over (weights + cache) / bandwidth",
    expected="over 1, at most 1.3 measured",
    evidence="derived",
)
@pytest.mark.parametrize(
    ("name", "where", "degrees", "most"),
    [
        ("llama2-70b", "hgx-h200", {}, 1.50),
        ("llama2-70b", "hgx-h200", {"gpus": 2, "tp": 2}, 1.70),
        ("llama2-70b", "dgx-a100-80gb", {"gpus": 2, "tp": 2}, 1.50),
        ("llama3-405b", "hgx-h200", {"gpus": 8, "tp": 8}, 1.70),
        ("llama3-405b", "dgx-b200", {"gpus": 8, "pp": 8, "micro_batches": 1}, 1.60),
        ("llama2-7b", "dgx-a100-80gb", {}, 1.60),
    ],
)
def test_one_sequence_is_decoded_no_faster_than_its_bytes_are_read(
    name: str, where: str, degrees: dict[str, Any], most: float, obtained: Obtained
) -> None:
    """(Weights + cache) / bandwidth; the rates of training's kernels reach three
    quarters of it (two thirds on Blackwell), and small kernels take the rest."""
    found = served(name, where, seq_len=1024, precision="bf16", **degrees)
    spec = model(name).spec
    counted = parameters(spec)
    read = 2 * (counted.total - counted.embedding) + 1024 * token_bytes(found.asked)
    least = read / found.asked.choice.tp / found.asked.machine.device.memory_bytes_per_s
    assert found.least_step_s == pytest.approx(least, rel=1e-3)
    obtained(f"{found.step_s / found.least_step_s:.2f}")
    assert found.least_step_s < found.step_s < most * found.least_step_s
    assert found.decode.bound == "memory_bandwidth"


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A row of gpt-fast's README: tokens a second of one sequence."""

    model: str
    tokens_per_s: float
    tp: int = 1
    quantization: str | None = None
    group_size: int | None = None

    @property
    def found_per_s(self) -> float:
        """By our estimate: a prompt of 5 tokens, and 200 new ones."""
        options = {
            name: value
            for name in ("quantization", "group_size")
            if (value := getattr(self, name)) is not None
        }
        found = served(
            self.model,
            gpus=self.tp,
            tp=self.tp,
            prompt_len=5,
            new_tokens=200,
            **options,
        )
        return 200 / found.total_s


# pytorch-labs/gpt-fast, README.md, "Benchmarks": 8 A100-80GB, 330 W, joined by a hybrid
# cube mesh; torch.compile, CUDA graphs. Its 8-bit weights have a scale for each row.
GPT_FAST = (
    Decoded(model="llama2-7b", tokens_per_s=104.9),
    Decoded(
        model="llama2-7b", tokens_per_s=155.58, quantization="int8", group_size=4096
    ),
    Decoded(model="llama2-7b", tokens_per_s=196.80, quantization="int4", group_size=32),
    Decoded(
        model="llama2-70b", tokens_per_s=19.13, quantization="int8", group_size=8192
    ),
    Decoded(model="llama2-70b", tokens_per_s=25.25, quantization="int4", group_size=32),
    Decoded(model="llama2-7b", tokens_per_s=168.84, tp=2),
    Decoded(model="llama2-7b", tokens_per_s=254.02, tp=4),
    Decoded(model="llama2-7b", tokens_per_s=328.43, tp=8),
    Decoded(model="llama2-70b", tokens_per_s=21.32, tp=2),
    Decoded(model="llama2-70b", tokens_per_s=38.01, tp=4),
    Decoded(model="llama2-70b", tokens_per_s=62.50, tp=8),
    Decoded(
        model="llama2-70b",
        tokens_per_s=80.44,
        tp=8,
        quantization="int8",
        group_size=8192,
    ),
    Decoded(
        model="llama2-70b", tokens_per_s=90.77, tp=8, quantization="int4", group_size=32
    ),
)


@pytest.mark.row(
    "K1", "error of decoding, mean and most, of gpt-fast's rates", expected="30 %"
)
def test_decoding_is_as_fast_as_gpt_fast_measured(obtained: Obtained) -> None:
    """Nothing is fitted to these rows: the rates are those of training."""
    errors = [row.found_per_s / row.tokens_per_s - 1 for row in GPT_FAST]
    obtained(f"{mean(map(abs, errors)):.1%}, {max(map(abs, errors)):.1%}")
    assert max(map(abs, errors)) < 0.15
    assert mean(map(abs, errors)) < 0.07


@pytest.mark.row(
    "G2",
    "decode time of 16 bits over int8, int4 (gpt-fast)",
    expected="1.48, 1.88 within 25 %",
    evidence="seen",
)
def test_fewer_bits_gain_what_was_measured(obtained: Obtained) -> None:
    """ZeroQuant's row: the ratio of decode times from bytes moved, within 25 %."""
    plain, *narrow = GPT_FAST[:3]
    obtained(", ".join(f"{row.found_per_s / plain.found_per_s:.2f}" for row in narrow))
    for row in narrow:
        measured = row.tokens_per_s / plain.tokens_per_s
        ours = row.found_per_s / plain.found_per_s
        assert ours == pytest.approx(measured, rel=0.25)
        assert ours > 1.4


def test_quantized_weights_take_a_scale_and_a_zero_a_group() -> None:
    """P (1 + 2·2/g) bytes in 8 bits (ZeroQuant, 2022): the layers' products; table and
    head stay in 16. gpt-fast's int4 file, whose head is narrow too, is 43.47 GB."""
    counted = parameters(model("llama2-70b").spec)
    ends = counted.embedding + counted.head + counted.final_norm
    norms = sum(layer.norms * count for layer, count in counted.layers)
    products = counted.total - ends - norms
    for name, bits, group in (("int8", 8, 128), ("int4", 4, 32)):
        found = served("llama2-70b", quantization=name, group_size=group)
        held = found.held[0].parameters
        assert held == pytest.approx(
            products * (bits / 8 + 4 / group) + 2 * ends + 2 * norms
        )
    assert held == pytest.approx(43.47e9, rel=0.01)


@pytest.mark.row(
    "I8",
    "billion parameters that Mixtral holds; reads for one token",
    expected="47; 13",
)
def test_few_tokens_read_few_experts_and_all_of_them_are_there(
    obtained: Obtained,
) -> None:
    """Mixtral: 47 B parameters held, 13 B of them read for one token."""
    counted = parameters(model("mixtral-8x7b").spec)
    one, many = (
        served("mixtral-8x7b", "hgx-h200", micro_batch=size) for size in (1, 64)
    )
    assert one.held[0].parameters == pytest.approx(2 * counted.total, rel=1e-6)
    assert one.held[0].parameters == many.held[0].parameters
    obtained(f"{counted.total / 1e9:.1f}; {counted.active / 1e9:.1f}")
    met = counted.active - counted.embedding
    assert float(one.decode.weight_bytes) == pytest.approx(2 * met, rel=1e-6)
    every = counted.total - counted.embedding
    assert float(many.decode.weight_bytes) == pytest.approx(2 * every, rel=1e-3)


def test_prompts_of_the_model_card_fill_the_device() -> None:
    """A long prompt is bound by compute: twice as many of them take twice as long."""
    one, two = (
        served(
            "llama2-70b",
            "hgx-h200",
            gpus=2,
            tp=2,
            prompt_len=8192,
            new_tokens=1,
            micro_batch=size,
        )
        for size in (1, 2)
    )
    assert one.prefill.bound == "compute"
    assert two.prefill_s == pytest.approx(2 * one.prefill_s, rel=1e-3)
    needed = prefill_flops(one.asked.job, 8192)
    assert needed / (2 * 989e12) < one.prefill_s < 3 * needed / (2 * 989e12)


@pytest.mark.row(
    "G2",
    "prefill of 16 bits over W8A8, H100, of products at most twice",
    expected="1.3 to 2",
    evidence="computed",
)
def test_w8a8_gains_where_weights_alone_do_not(obtained: Obtained) -> None:
    """ZeroQuant: INT8 products. Decoding one sequence reads weights, and gains no more
    than with those in 8 bits alone, less the kernels that quantise activations; a
    prompt multiplies, and gains by the rate of 8 bits. Memory is that of W8."""
    given = {"prompt_len": 4000, "new_tokens": 96}
    plain, weights, both = (
        served("llama2-7b", "dgx-h100", quantization=name, **given)
        for name in (None, "int8", "w8a8")
    )
    assert both.held[0].parameters == weights.held[0].parameters
    decode = plain.generation_s / both.generation_s
    obtained(f"{plain.prefill_s / both.prefill_s:.2f}")
    assert 1.3 < decode < plain.generation_s / weights.generation_s
    assert weights.prefill_s == pytest.approx(plain.prefill_s, rel=0.1)
    assert 1.3 < plain.prefill_s / both.prefill_s < 2
