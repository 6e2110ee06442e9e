"""The most bytes alive in a step on two ranks are those that are priced."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.estimator import estimate
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from runtime.trace.peak_memory import Change, most_alive, watched
from tests.runtime.ranks import on_ranks
from tests.support.small_layouts import FSDP, ZERO1, ZERO2

CPU = torch.device("cpu")
NEAR = 0.07
SEQ_LEN = 128  # as many bytes of activations as of the states of a rank
MOST_STEPS = 4  # the least counts: blocks that gloo's threads free can go unseen
WHOLE = {
    f"{name} {recompute}": replace(choice, micro_batch=2, recompute=recompute)
    for name, choice in (("zero 1", ZERO1), ("zero 2", ZERO2), ("zero 3", FSDP))
    for recompute in ("none", "full", "sqrt")
}
IN_PARTS = {  # 3 micro-batches
    f"{name} {recompute}, in parts": replace(choice, micro_batch=1, recompute=recompute)
    for name, choice in (("zero 2", ZERO2), ("zero 3", FSDP))
    for recompute in ("none", "full")
}
USUAL = {  # every level of ZeRO, and every kind of recomputation
    *("zero 1 none", "zero 1 sqrt", "zero 2 full", "zero 3 none", "zero 3 full"),
    *("zero 2 none, in parts", "zero 3 full, in parts"),
}


@pytest.mark.slow
def test_peaks_of_one_micro_batch_are_priced() -> None:
    """Gradients come as weights go; 5.2 % were seen at the most."""
    hold_to_price(only(WHOLE, USUAL), batch=4)


@pytest.mark.slow
def test_peaks_of_several_micro_batches_are_priced() -> None:
    """Gradients stay beside all else, and no buffer until the next backward."""
    hold_to_price(only(IN_PARTS, USUAL), batch=6)


@pytest.mark.matrix
def test_peaks_of_the_others_are_priced() -> None:
    hold_to_price(only(WHOLE, WHOLE.keys() - USUAL), batch=4)
    hold_to_price(only(IN_PARTS, IN_PARTS.keys() - USUAL), batch=6)


def only(choices: dict[str, Uniform], names: Collection[str]) -> dict[str, Uniform]:
    return {name: one for name, one in choices.items() if name in names}


def test_a_block_that_gloo_freed_unseen_went_with_its_collective() -> None:
    """Of 8 bytes in each of two collectives; else both would be alive at once."""
    taken = [Change(10, 1, 8, 15), Change(20, 2, 8, 25), Change(30, 3, 4)]
    assert most_alive(taken) == 8
    assert most_alive([*taken, Change(22, 1, -8)]) == 16  # seen, later


def test_a_block_of_no_collective_stays_until_its_place_is_taken() -> None:
    taken = [Change(10, 1, 8), Change(20, 2, 4), Change(30, 1, 2)]
    assert most_alive(taken) == 12
    assert most_alive(reversed(taken)) == 12
    assert most_alive([*taken, Change(40, 3, 7)]) == 13


def hold_to_price(choices: dict[str, Uniform], batch: int) -> None:
    ranks = on_ranks(2, peaks, list(choices), batch)
    for name, choice in choices.items():
        asked = layout(choice, batch)
        priced = estimate(job(batch), cluster("cpu"), asked).peak_allocated_bytes
        seen = max(rank[name] for rank in ranks)
        assert priced == pytest.approx(seen, rel=NEAR), name


def job(batch: int) -> Job:
    spec = model("gpt-tiny").spec
    return Job(model="gpt-tiny", spec=spec, seq_len=SEQ_LEN, global_batch=batch)


def layout(choice: Uniform, batch: int) -> Layout:
    return spell_out(choice, job(batch).graph, batch)


def peaks(rank: int, names: list[str], batch: int) -> dict[str, int]:
    from runtime.data.sources import source
    from runtime.optim.optimizer import Settings
    from runtime.train.build import Setup
    from runtime.train.trainer import Trainer

    found = {}
    for name in names:
        trainer = Trainer(
            job(batch),
            layout({**WHOLE, **IN_PARTS}[name], batch),
            source("synthetic", vocab=512, seq_len=SEQ_LEN, seed=1),
            settings=Settings(),
            setup=Setup(seed=0, device=CPU),
        )
        trainer.step(0)
        seen: list[int] = []
        for step in range(1, MOST_STEPS + 1):
            trainer.forget()
            with watched(CPU) as peak:
                trainer.step(step)
            seen.append(peak.allocated)
            if _on_all_ranks(sum(one < 1.001 * min(seen) for one in seen) > 1):
                break
        found[name] = min(seen)
    return found


def _on_all_ranks(said: bool) -> bool:
    answer = torch.tensor(said)
    dist.all_reduce(answer, dist.ReduceOp.MIN)
    return bool(answer)
