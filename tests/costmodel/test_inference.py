"""Inference: laws of its prices and bytes, its largest batch, its questions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.inference.estimate import passed
from costmodel.inference.memory import fits, largest_micro_batch, rank_memory
from costmodel.inference.passes import met, product_s
from costmodel.inference.pools import pools
from costmodel.inference.speculation import Speculation, speculation
from costmodel.machine.assembly import machine
from costmodel.options.inference import InferenceOptions
from profiles.errors import Contradiction, InvalidQuestion, Unsupported
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import Format
from profiles.models.catalog import model
from tests.support.served import asked, served
from tests.support.unlike import cluster_file

LAYOUTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama2-7b", "dgx-a100-80gb", {}),
    ("llama3-70b", "hgx-h200", {"gpus": 8, "tp": 8}),
    ("gpt-13b", "dgx-v100-32gb", {"gpus": 8, "tp": 2, "pp": 4}),
    ("mixtral-8x7b", "dgx-h100", {"gpus": 4, "tp": 4}),
    ("deepseek-v3", "hgx-h200", {"gpus": 16, "tp": 8, "dp": 2, "ep": 16}),
    ("gpt-oss-20b", "dgx-h100", {}),  # every other layer through a window
    ("gpt-125m", "a100-pcie", {"gpus": 2, "tp": 2}),
)
each_layout = pytest.mark.parametrize(("name", "where", "degrees"), LAYOUTS)


@each_layout
def test_parts_sum_to_what_they_are_parts_of(
    name: str, where: str, degrees: dict[str, Any]
) -> None:
    found = served(name, where, seq_len=1024, micro_batch=4, **degrees).document()
    prefill, decode = found["prefill"], found["decode"]
    assert sum(decode["breakdown_s"].values()) == pytest.approx(decode["step_time_s"])
    first = prefill["time_to_first_token_s"]
    assert sum(prefill["breakdown_s"].values()) == pytest.approx(first)
    for entry in found["memory"]:
        kinds = {key: size for key, size in entry.items() if key != "stage"}
        total = kinds.pop("total")
        assert sum(kinds.values()) == pytest.approx(total)
    batch = found["layout"]["global_batch"]
    assert decode["tokens_per_s"] * decode["step_time_s"] == pytest.approx(batch)
    assert decode["bound"] == max(decode["bounds_s"], key=decode["bounds_s"].get)


@each_layout
def test_no_step_is_faster_than_any_resource_allows(
    name: str, where: str, degrees: dict[str, Any]
) -> None:
    """Of bytes and FLOPs, at the datasheet's figures."""
    for size in (1, 64, 512):
        found = served(name, where, seq_len=1024, micro_batch=size, **degrees)
        for one in (found.prefill, found.decode):
            least = max(one.bounds_s[kind] for kind in ("memory_bandwidth", "compute"))
            assert float(one.latency_s) > float(least)


@each_layout
def test_more_sequences_and_longer_ones_take_no_less(
    name: str, where: str, degrees: dict[str, Any]
) -> None:
    def steps(**options: Any) -> list[tuple[float, float]]:
        ((key, values),) = options.items()
        each = [served(name, where, **degrees, **{key: one}) for one in values]
        return [(one.step_s, max(held.total for held in one.held)) for one in each]

    for found in (
        steps(micro_batch=(1, 2, 7, 8, 9, 64, 65, 128, 129, 1000)),
        steps(seq_len=(2, 16, 17, 128, 129, 1000, 2048)),
    ):
        for one, next_one in pairwise(found):
            assert next_one[0] >= one[0] * (1 - 1e-12)
            assert next_one[1] >= one[1]


@each_layout
def test_the_largest_batch_fits_and_one_more_does_not(
    name: str, where: str, degrees: dict[str, Any]
) -> None:
    question = asked(name, where, seq_len=2048, **degrees)
    most = largest_micro_batch(question)
    if most:
        assert fits(question, rank_memory(question, most))
    assert not fits(question, rank_memory(question, most + 1))


def test_tensor_parallelism_divides_weights_and_heads_but_no_latents() -> None:
    def held(name: str, tp: int) -> tuple[float, float]:
        one = served(name, "hgx-h200", gpus=tp, tp=tp, seq_len=1024).held[0]
        return one.parameters, one.kv_cache

    for name in ("llama3-70b", "deepseek-v2"):
        sizes = [held(name, tp) for tp in (1, 2, 4, 8)]
        for tp, (weights, _) in zip((1, 2, 4, 8), sizes, strict=True):
            assert weights == pytest.approx(sizes[0][0] / tp, rel=0.05)
        caches = [cache for _, cache in sizes]
        if name == "deepseek-v2":
            assert len(set(caches)) == 1
        else:
            assert caches == pytest.approx([caches[0] / tp for tp in (1, 2, 4, 8)])


def test_key_value_heads_are_kept_once_a_rank_at_least() -> None:
    eight, sixteen = (
        served("llama3-70b", "gb200-nvl72", gpus=tp, tp=tp) for tp in (8, 16)
    )
    assert sixteen.held[0].kv_cache == eight.held[0].kv_cache
    assert "2 ranks" in sixteen.document()["warnings"][0]
    assert eight.document()["warnings"] == []


def test_a_tied_table_is_held_once_on_one_stage_and_twice_on_two() -> None:
    whole = served("gpt-125m").held
    cut = served("gpt-125m", gpus=2, pp=2).held
    table = 2 * 51200 * 768
    assert sum(one.parameters for one in cut) - whole[0].parameters == table


def test_no_gradient_or_moment_is_held() -> None:
    found = served("llama2-7b", precision="bf16").document()
    kinds = {*found["memory"][0]} - {"stage", "total"}
    assert kinds == {
        *("parameters", "kv_cache", "activations", "communication", "reserve"),
        "context",
    }
    assert found["memory"][0]["parameters"] == pytest.approx(2 * 6_738_415_616)


def test_precision_says_what_weights_and_the_cache_take() -> None:
    def sizes(**options: Any) -> tuple[float, float]:
        held = served("llama3-8b", "dgx-h100", **options).held[0]
        return held.parameters, held.kv_cache

    half, cache = sizes(precision="bf16")
    assert sizes(precision="fp32") == (2 * half, 2 * cache)
    assert sizes(precision="bf16", kv_cache_dtype="fp8") == (half, cache / 2)
    eight, same = sizes(precision="fp8")
    assert same == cache  # of activations, which stay in 16 bits
    ends = 2 * 2 * 128256 * 4096  # as table and head do
    assert eight - ends == pytest.approx((half - ends) / 2, rel=1e-3)


def test_scores_are_held_where_attention_writes_them() -> None:
    """Of one prompt: 2 bytes of each of 32 · 2048² of them."""
    flash, written = (
        served("llama2-7b", prompt_len=2048, new_tokens=1, flash_attention=kernel)
        for kernel in (True, False)
    )
    scores = 2 * 32 * 2048**2
    more = written.held[0].activations - flash.held[0].activations
    assert scores / 2 < more < 2 * scores
    assert written.prefill_s > flash.prefill_s


def test_rows_of_experts_on_many_ranks_are_shared_by_them() -> None:
    """Each of 8 tp ranks has an eighth of the rows that are sorted by expert."""
    cut, spread = (
        served("mixtral-8x22b", "hgx-h200", gpus=8, tp=8, ep=ep, prompt_len=8192)
        for ep in (1, 8)
    )
    assert spread.held[0].activations < cut.held[0].activations
    assert spread.held[0].parameters == cut.held[0].parameters


def test_a_window_bounds_the_cache() -> None:
    """gpt-oss: every other layer sees 128 tokens."""
    short, long = (
        served("gpt-oss-20b", "dgx-h100", seq_len=size).held[0].kv_cache
        for size in (128, 4096)
    )
    assert long / short == pytest.approx((4096 + 128) / 2 / 128)


def test_stages_with_as_many_batches_as_there_are_give_each_no_more_tokens() -> None:
    """A pipeline does not make one sequence faster: it serves several at once."""
    one = served("llama2-70b", gpus=4, pp=4, micro_batches=1)
    four = served("llama2-70b", gpus=4, pp=4)
    assert four.asked.micro_batches == 4
    assert float(one.decode.latency_s) <= one.step_s <= four.step_s < 1.2 * one.step_s
    assert four.held[0].kv_cache == 4 * one.held[0].kv_cache
    eight = served("llama2-70b", gpus=4, pp=4, micro_batches=8)
    assert eight.step_s > 1.8 * four.step_s


def test_replicas_serve_as_many_times_as_much() -> None:
    one, two = (served("llama2-7b", gpus=count) for count in (1, 2))
    assert two.asked.choice.dp == 2
    assert two.step_s == one.step_s
    first, second = one.document(), two.document()
    rate = "tokens_per_s"
    assert second["decode"][rate] == pytest.approx(2 * first["decode"][rate])
    assert second["largest_global_batch"] == 2 * first["largest_global_batch"]


def test_a_host_that_issues_each_kernel_binds_small_models() -> None:
    graphs = served("llama3.2-1b", "hgx-h200", cuda_graphs=True)
    eager = served("llama3.2-1b", "hgx-h200", cuda_graphs=False)
    assert (graphs.decode.bound, eager.decode.bound) == ("memory_bandwidth", "host")
    assert eager.step_s > 2 * graphs.step_s
    assert float(eager.decode.bounds_s["host"]) < eager.step_s


def test_answers_are_a_prefill_and_a_step_for_every_further_token() -> None:
    found = served("llama2-7b", prompt_len=100, new_tokens=4, seq_len=200)
    steps = passed(found.asked, context=np.array([101, 102, 103])).step_s(1)
    assert found.total_s == pytest.approx(found.prefill_s + float(np.sum(steps)))
    one = served("llama2-7b", prompt_len=100, new_tokens=1)
    assert one.total_s == one.prefill_s
    many = served("llama2-7b", prompt_len=100, new_tokens=1001)
    every = passed(many.asked, context=np.arange(101, 1101)).step_s(1)
    assert many.generation_s == pytest.approx(float(np.sum(every)), rel=1e-3)


@given(
    tokens=st.integers(1, 5000),
    ep=st.sampled_from((1, 8, 16)),
)
def test_experts_that_tokens_meet_are_no_more_than_there_are(
    tokens: int, ep: int
) -> None:
    question = asked("deepseek-v3", "hgx-h200", gpus=16, tp=8, dp=2, ep=ep)
    block = question.job.graph.block("expert-layer")
    here = met(block, question.degrees(tokens, 1))
    held = 256 / ep
    rows = float(here.experts * here.rows)
    assert 0 < float(here.experts) <= held
    together = tokens * max(ep // 8, 1)
    assert rows == pytest.approx(together * 8 * held / 256)


@given(
    m=st.integers(1, 300),
    n=st.sampled_from((64, 1000, 4096, 50000)),
    k=st.sampled_from((128, 1024, 8192)),
    bits=st.sampled_from((4.0, 2.0, 1.0, 0.5)),
)
def test_products_take_no_less_for_more(m: int, n: int, k: int, bits: float) -> None:
    on = machine(cluster("dgx-a100-80gb"))

    def seconds(*shape: float, weight_bytes: float = bits) -> float:
        found = product_s(
            *shape, machine=on, number=Format.BF16, weight_bytes=weight_bytes
        )
        return float(found)

    whole = seconds(m, n, k)
    least = n * k * bits / on.device.memory_bytes_per_s
    assert whole > least
    for more in ((m + 1, n, k), (m, n + 8, k), (m, n, k + 8), (m, n, k, 2)):
        assert seconds(*more) >= whole * (1 - 1e-12)
    assert seconds(m, n, k, weight_bytes=2 * bits) >= whole


WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("llama2-7b", {"tp": 3}, "32 heads"),
    ("llama2-7b", {"ep": 2}, "no experts"),
    ("llama2-7b", {"pp": 33}, "32 layers"),
    ("llama2-7b", {"gpus": 8, "tp": 3}, "8 GPUs"),
    ("llama2-7b", {"precision": "amp-bf16"}, "give bf16"),
    ("llama2-7b", {"precision": "fp8"}, "fp8"),
    ("llama2-7b", {"group_size": 32}, "--quantization"),
    ("llama2-7b", {"quantization": "int8", "precision": "fp32"}, "16 bits"),
    ("llama2-7b", {"seq_len": 1}, "no room"),
    ("llama2-7b", {"seq_len": 100, "prompt_len": 100}, "no room"),
    ("llama2-7b", {"seq_len": 100, "new_tokens": 100}, "no room"),
    ("llama2-7b", {"seq_len": 9, "prompt_len": 5, "new_tokens": 5}, "no room"),
    ("llama2-7b", {"gpus": 2, "global_batch": 3}, "--global-batch 3"),
    ("llama2-7b", {"micro_batch": 2, "global_batch": 3}, "--global-batch 3"),
    ("gpt-13b", {"seq_len": 4096}, "learned positions"),
    ("bert-large", {}, "decoder"),
    ("mixtral-8x7b", {"gpus": 8, "tp": 4, "ep": 2}, "ep=2"),
    ("mixtral-8x7b", {"gpus": 3, "tp": 1, "ep": 3}, "8 experts"),
    ("mixtral-8x7b", {"gpus": 4, "pp": 2, "ep": 2}, "pp=2"),
    ("llama2-7b", {"imbalance": 2.0}, "experts"),
)


@pytest.mark.parametrize(("name", "options", "said"), WRONG)
def test_what_cannot_be_is_refused(
    name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidQuestion, match=said):
        asked(name, **options)


def test_unlike_islands_are_refused(tmp_path: Path) -> None:
    where = cluster_file(tmp_path, "dgx-a100-80gb", "dgx-h100")
    with pytest.raises(Unsupported, match="islands"):
        asked("llama2-7b", where)


DRAFTED: dict[str, Any] = {"gpus": 8, "tp": 8, "seq_len": 4096}


def drafted(tokens: int, acceptance: float, batch: int = 1) -> Speculation:
    options = InferenceOptions(draft_tokens=tokens, acceptance=acceptance)
    plain = served("llama2-70b", **DRAFTED, micro_batch=batch)
    return speculation(plain, options, lambda: model("llama2-7b"), {})


@given(tokens=st.integers(1, 16), acceptance=st.floats(0, 1))
def test_a_round_makes_what_its_acceptances_say(tokens: int, acceptance: float) -> None:
    """Leviathan et al., equation 1: the sum of the probabilities of each length."""
    made = drafted(tokens, acceptance).tokens_per_round
    assert made == pytest.approx(sum(acceptance**count for count in range(tokens + 1)))
    assert 1 <= made <= tokens + 1


@pytest.mark.parametrize("tokens", [1, 4, 8])
def test_checking_several_tokens_costs_little_where_few_sequences_are(
    tokens: int,
) -> None:
    """Weights are read once: at a batch of one a draft of everything right is faster,
    and one that is never right is slower, by its own steps."""
    sure, never = drafted(tokens, 1.0), drafted(tokens, 0.0)
    plain = sure.plain.step_s
    assert sure.token_s < plain < never.token_s
    context = np.asarray(sure.plain.asked.job.seq_len, dtype=float)
    checked = passed(sure.plain.asked, context=context, fresh=tokens + 1)
    once = passed(sure.plain.asked, context=context)
    assert checked.cache_bytes == once.cache_bytes
    assert checked.weight_bytes == once.weight_bytes
    assert once.latency_s <= checked.latency_s < 1.5 * once.latency_s


def test_a_large_batch_has_less_of_a_draft() -> None:
    few, many = (drafted(4, 0.8, batch=batch) for batch in (1, 256))
    gains = [one.plain.step_s / one.token_s for one in (few, many)]
    assert gains[0] > gains[1]


def test_a_draft_needs_the_tokenizer_and_no_pipeline() -> None:
    options = InferenceOptions()
    plain = served("llama2-70b", **DRAFTED)
    with pytest.raises(Contradiction, match="vocabulary"):
        speculation(plain, options, lambda: model("llama3-8b"), {})
    piped = served("llama2-70b", gpus=8, tp=4, pp=2)
    with pytest.raises(Contradiction, match="pipeline"):
        speculation(piped, options, lambda: model("llama2-7b"), {})


@pytest.mark.parametrize("prefill_gpus", [2, 4, 6])
def test_the_slower_pool_decides(prefill_gpus: int) -> None:
    plain = served("llama2-70b", gpus=8, tp=2, micro_batch=16, new_tokens=512)
    found = pools(plain, prefill_gpus)
    assert found.requests_per_s == min(found.prefill_per_s, found.decode_per_s)
    assert found.prefill_per_s * found.plain.prefill_s == pytest.approx(
        prefill_gpus / 2 * 16, rel=0.01
    )
    best = pools(plain, found.balanced_gpus).requests_per_s
    assert best >= found.requests_per_s
    assert found.moved_bytes == 327_680 * plain.asked.prompt_len


@pytest.mark.parametrize(("gpus", "prefill_gpus"), [(8, 3), (8, 8), (2, 2)])
def test_pools_are_whole_replicas(gpus: int, prefill_gpus: int) -> None:
    plain = served("llama2-70b", gpus=gpus, tp=2)
    with pytest.raises(Contradiction, match=r"--prefill-gpus"):
        pools(plain, prefill_gpus)
