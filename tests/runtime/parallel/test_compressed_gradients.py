"""Gradients all-reduced in fewer bytes: what is left out comes later, and training
goes on like with whole ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.operators.gradient_compression import GradientCompression
from profiles.hardware.precisions import precision
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from runtime.data import source
from runtime.optim import LearningRate, Settings
from runtime.parallel.compressed_gradients import BFloat16, PowerSgd, Signs
from runtime.parallel.data_parallel import Buffered
from runtime.train.build import Setup
from runtime.train.trainer import Trainer
from tests.golden.priced import job_of
from tests.runtime.ranks import on_ranks
from tests.support.rows import Obtained

STEPS, LR, LAST = 120, 3e-3, 20
# How far the mean loss of the last steps may be from whole gradients'.
TOLERANCE = {"none": 0.0, "bf16": 1e-3, "powersgd:16": 0.02, "1bit:60": 0.04}


def small_job() -> Job:
    job = job_of("gpt-tiny", 8, seq_len=32)
    assert isinstance(job.spec, DecoderSpec)
    small = replace(
        job.spec,
        hidden=64,
        heads=2,
        kv_heads=2,
        ffn_hidden=256,
        vocab=64,
        layers=2,
        tied_embeddings=False,
    )
    return replace(job, spec=small)


def trained(rank: int) -> dict[str, Any]:
    job = small_job()
    choice = Uniform(dp=2, zero=0, precision="fp32", micro_batch=4)
    found: dict[str, Any] = {}
    for name in TOLERANCE:
        trainer = Trainer(
            job,
            spell_out(choice, job.graph, job.global_batch),
            source("synthetic", vocab=64, seq_len=32, seed=0),
            settings=Settings(lr=LR),
            setup=Setup(
                seed=0,
                device=torch.device("cpu"),
                gradients=GradientCompression.parse(name),
            ),
            rate=LearningRate(lr=LR, steps=STEPS, kind="constant"),
        )
        losses = [trainer.step(number).loss for number in range(STEPS)]
        (held,) = trainer.stages
        assert isinstance(held.parallel, Buffered)
        weights = [one.detach().flatten() for _, one in held.named_parameters()]
        found[name] = {
            "losses": losses,
            "weights": torch.cat(weights),
            "sent": held.parallel.sent_bytes,
        }
    return found


@pytest.mark.row(
    "D3",
    "last losses with hooks over without: bf16, powersgd:16, 1bit:60",
    expected="within 0.1, 2, 4 %",
    evidence="computed",
)
def test_it_trains_like_whole_gradients(obtained: Obtained) -> None:
    one, two = on_ranks(2, trained)
    whole = one["none"]["losses"]
    for name, tolerance in TOLERANCE.items():
        torch.testing.assert_close(one[name]["weights"], two[name]["weights"])
        last, plain = (
            sum(some[-LAST:]) / LAST for some in (one[name]["losses"], whole)
        )
        assert last == pytest.approx(plain, rel=max(tolerance, 1e-12)), name
        assert (one[name]["losses"] == whole) == (name == "none")
    lasts = (sum(one[name]["losses"][-LAST:]) for name in list(TOLERANCE)[1:])
    obtained(", ".join(f"{some / sum(whole[-LAST:]) - 1:+.2%}" for some in lasts))
    # Until the warm-up ends 1-bit Adam is Adam.
    early = one["1bit:60"]["losses"][:61]
    assert early == pytest.approx(whole[:61], rel=1e-4)
    # Volumes are those that are priced.
    job, rules = small_job(), precision("fp32")
    elements = len(one["none"]["weights"])
    for name in ("bf16", "powersgd:16"):
        share = GradientCompression.parse(name).share(job.graph, 1, rules)
        priced_bytes = STEPS * share * 4 * elements
        assert one[name]["sent"] == pytest.approx(priced_bytes, rel=1e-6)


def exchanged(rank: int) -> dict[str, Any]:
    group = dist.group.WORLD
    assert group is not None
    ranks, left = dist.get_world_size(), 0.0
    signs, found, wanted = Signs(group), torch.zeros(999), torch.zeros(999)
    for step in range(12):
        torch.manual_seed(100 * step + rank)
        own = torch.randn(999)
        found += signs.mean(own)
        dist.all_reduce(own)
        wanted += own / ranks
    # Of what is left out each rank has its own, and that of the piece that it serves.
    assert signs._own is not None
    assert signs._served is not None
    left_own = signs._own.clone()
    dist.all_reduce(left_own)
    pieces = [torch.empty_like(signs._served) for _ in range(ranks)]
    dist.all_gather(pieces, signs._served)
    waits = (left_own / ranks + torch.cat([one.flatten() for one in pieces]))[:999]
    low = PowerSgd(group, GradientCompression.parse("powersgd:2"))
    sums, means = torch.zeros(40, 30), torch.zeros(40, 30)
    for step in range(6):
        torch.manual_seed(100 * step + rank)
        own = torch.randn(40, 30)
        exact = own.clone()
        dist.all_reduce(exact)
        means += exact / ranks
        low.reduce({"one": own}, ranks)
        left = float(torch.linalg.matrix_rank(own))
        sums += own
    rest = low._left_out["one"].clone()
    dist.all_reduce(rest)
    narrow = BFloat16(group)
    vector = torch.full((8,), float(rank + 1))
    narrow.reduce({"one": vector}, ranks)
    return {
        "signs": (found + waits, wanted),
        "low rank": (sums + rest / ranks, means),
        "rank": left,
        "cast": vector,
        "bits": signs.sent_bytes / 12 / 999 * 8,
    }


def test_what_is_left_out_comes_later() -> None:
    """The sum of all that was handed on, and what waits, is that of all that was."""
    ranks = on_ranks(3, exchanged)
    for found in ranks:
        for name in ("signs", "low rank"):
            torch.testing.assert_close(*found[name], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found["signs"][1], ranks[0]["signs"][1])
        assert found["rank"] == 2
        torch.testing.assert_close(found["cast"], torch.full((8,), 2.0))
        assert found["bits"] == pytest.approx(1, rel=0.15)  # a bit each, and sizes
