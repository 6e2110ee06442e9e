"""S2FP8 and Wang's FP8: what each promises of tensors, sums and a tiny transformer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform, spell_out
from profiles.models.spec import DecoderSpec
from runtime.data import source
from runtime.optim import LearningRate, Settings
from runtime.parallel.emulated_fp8 import (
    E5M2,
    SUMS,
    Grid,
    multiplied_in_chunks,
    round_at_random,
    s2fp8,
    shifted,
    summed_in_chunks,
)
from runtime.train.build import Setup
from runtime.train.trainer import Trainer
from tests.golden.priced import job_of
from tests.runtime.ranks import on_ranks
from tests.support.rows import Obtained

seeds = st.integers(0, 2**31)
STEPS, LAST, LR = 120, 20, 3e-3


@given(seeds, st.floats(-40, 40), st.floats(0.05, 3))
def test_kept_tensors_have_log_mean_0_and_log_max_15(
    seed: int, centre: float, spread: float
) -> None:
    torch.manual_seed(seed)
    signs = torch.randint(0, 2, (4096,)) * 2 - 1
    values = signs * torch.exp(centre + spread * torch.randn(4096))
    values[::7] = 0
    _, _, made = shifted(values)
    logs = made[made != 0].abs().double().log2()
    assert float(logs.mean()) == pytest.approx(0, abs=1e-4)
    assert float(logs.max()) == pytest.approx(15, abs=1e-4)
    assert torch.equal(made.sign(), values.sign())


@given(seeds, st.floats(-40, 40), st.floats(0.05, 1))
def test_what_comes_back_is_an_eighth_away_at_most(
    seed: int, centre: float, spread: float
) -> None:
    """Of log-normal tensors, whatever their size: e5m2 itself would lose these. Few
    elements are further below the mean than the largest is above it: those are lost."""
    torch.manual_seed(seed)
    values = torch.exp(centre + spread * torch.randn(4096))
    _, _, made = shifted(values)
    inside = made >= 2.0**-15
    wrong = (s2fp8(values) - values).abs() / values
    assert float(wrong[inside].max()) <= 2**-3
    assert int((~inside).sum()) <= 12  # of 4096


def test_zeros_stay_zeros() -> None:
    assert torch.equal(s2fp8(torch.zeros(8)), torch.zeros(8))


def test_the_grid_is_that_of_torchs_e5m2() -> None:
    torch.manual_seed(0)
    values = torch.randn(10_000) * torch.exp2(torch.randint(-17, 15, (10_000,)))
    theirs = values.clamp(-E5M2.largest, E5M2.largest).to(torch.float8_e5m2).float()
    torch.testing.assert_close(E5M2.rounded(values), theirs, rtol=0, atol=0)
    half = Grid(5, 10).rounded(values)
    torch.testing.assert_close(half, values.half().float(), rtol=0, atol=0)


@pytest.mark.row(
    "G4",
    "2^16 ones in 16-bit floats: naive; chunks of 64",
    expected="2048; 65536",
    evidence="computed",
)
def test_a_sum_of_2_to_16_ones_is_exact_in_chunks(obtained: Obtained) -> None:
    """Naive sums stall where a one is half of the last place: with the 10 bits of fp16
    at 2048, with 9 at 1024."""
    ones = torch.ones(2**16)
    naive = torch.zeros((), dtype=torch.float16)
    for _ in range(3000):
        naive += 1
    assert float(naive) == 2048
    wide = Grid(6, 10)
    obtained(f"{float(naive):g}; {float(summed_in_chunks(ones, wide)):g}")
    assert float(summed_in_chunks(ones, wide, chunk=len(ones))) == 2048
    assert float(summed_in_chunks(ones, SUMS, chunk=len(ones))) == 1024
    for grid in (wide, SUMS):
        assert float(summed_in_chunks(ones, grid)) == 2**16


def test_products_in_chunks_are_near_and_naive_ones_are_not() -> None:
    """Positive numbers, of which a long sum loses what is small beside it."""
    torch.manual_seed(0)
    left, right = torch.rand(4, 8192), torch.rand(8192, 4)
    exact = left @ right
    wrong = (multiplied_in_chunks(left, right) / exact - 1).abs().max()
    terms = left.unsqueeze(1) * right.t().unsqueeze(0)
    naive = (summed_in_chunks(terms, SUMS, 8192) / exact - 1).abs().min()
    assert wrong < 0.01 < 0.3 < naive


def test_updates_are_rounded_at_random_and_right_on_average() -> None:
    """A step of a hundredth of the last place is lost by rounding to the nearest."""
    weights = torch.full((20_000,), 1.0 + 2**-9 * 0.01)
    assert torch.equal(SUMS.rounded(weights), torch.ones(20_000))
    found = weights.clone()
    round_at_random(found, 1)
    again, other = weights.clone(), weights.clone()
    round_at_random(again, 1)
    round_at_random(other, 2)
    assert torch.equal(found, again)
    assert not torch.equal(found, other)
    deviation = 2**-9 * (0.01 * 0.99 / 20_000) ** 0.5
    assert abs(float(found.double().mean() - weights[0].double())) <= 3 * deviation


def trained(rank: int) -> dict[str, Any]:
    job = job_of("gpt-tiny", 8, seq_len=32)
    assert isinstance(job.spec, DecoderSpec)
    small = replace(
        job.spec, layers=2, hidden=64, heads=2, kv_heads=2, ffn_hidden=256, vocab=64
    )
    job = replace(job, spec=small)
    found = {}
    for name in ("fp32", "fp8-s2", "fp8-wang"):
        choice = Uniform(dp=2, zero=0, precision=name, micro_batch=4)
        trainer = Trainer(
            job,
            spell_out(choice, job.graph, job.global_batch),
            source("synthetic", vocab=64, seq_len=32, seed=0),
            settings=Settings(lr=LR),
            setup=Setup(seed=0, device=torch.device("cpu")),
            rate=LearningRate(lr=LR, steps=STEPS, kind="constant"),
        )
        losses = [trainer.step(number).loss for number in range(STEPS)]
        (held,) = trainer.stages
        weights = [one.detach().flatten() for _, one in held.named_parameters()]
        found[name] = {"losses": losses, "weights": torch.cat(weights)}
    return found


@pytest.mark.row(
    "G3",
    "last losses of a tiny transformer over fp32's",
    expected="within 1 %",
    evidence="computed",
)
def test_a_tiny_transformer_trains_like_in_32_bits(obtained: Obtained) -> None:
    one, two = on_ranks(2, trained)
    plain = sum(one["fp32"]["losses"][-LAST:]) / LAST
    narrow = (one[name]["losses"][-LAST:] for name in ("fp8-s2", "fp8-wang"))
    obtained(", ".join(f"{sum(some) / LAST / plain - 1:+.2%}" for some in narrow))
    for name in ("fp8-s2", "fp8-wang"):
        assert one[name]["losses"] != one["fp32"]["losses"]
        assert sum(one[name]["losses"][-LAST:]) / LAST == pytest.approx(plain, rel=0.01)
        assert torch.equal(one[name]["weights"], two[name]["weights"])
    weights = one["fp8-wang"]["weights"]
    assert torch.equal(SUMS.rounded(weights), weights)
