"""Dropout on ranks that share tensors: the same masks of what they share, their own of
what is theirs, and the first ones again where activations are recomputed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from costmodel.layout.strategy import Uniform, spell_out
from profiles.models.job import Job
from runtime.models.attention import AttentionCore
from tests.runtime.ranks import on_ranks
from tests.support import small_jobs
from tests.support.foreign_models import trainer_of

RANKS, BATCH = 2, 4
RECOMPUTES = ("none", "selective", "cheap-ops", "full")
TP = Uniform(tp=RANKS, precision="fp32", micro_batch=2)


def dropping() -> Job:
    """Of embedding, attention and residuals a third is dropped."""
    spec = small_jobs.GPT
    numerics = replace(spec.numerics, attention_dropout=0.3, embedding_dropout=0.3)
    return small_jobs.job(
        replace(spec, dropout=0.3, numerics=numerics), global_batch=BATCH
    )


def trained(rank: int) -> dict[str, Any]:
    """By policy and kind: losses and norms of three steps, and whole parameters."""
    found: dict[str, Any] = {}
    job = dropping()
    for sp in (False, True):
        for recompute in RECOMPUTES:
            choice = replace(TP, sequence_parallel=sp, recompute=recompute)
            trainer = trainer_of(job, spell_out(choice, job.graph, BATCH))
            steps = [trainer.step(number) for number in range(3)]
            found[f"{recompute} {sp}"] = {
                "seen": [x for one in steps for x in (one.loss, one.gradient_norm)],
                "norms": [
                    parameter.detach().clone()
                    for name, parameter in trainer.stages[0].named_parameters()
                    if "norm" in name
                ],
            }
    return found


@pytest.mark.slow
def test_tensor_parallel_ranks_drop_alike_what_they_share() -> None:
    """Norms, which each rank holds whole, get the same gradients only of one mask."""
    first, second = on_ranks(RANKS, trained)
    for name, one in first.items():
        for mine, others in zip(one["norms"], second[name]["norms"], strict=True):
            torch.testing.assert_close(mine, others, rtol=0, atol=1e-6)
        kind = name.split()[1]
        assert one["seen"] == pytest.approx(first[f"none {kind}"]["seen"], rel=1e-5)
        assert all(0 < value < 10 for value in one["seen"])


def test_ranks_draw_masks_of_their_own_for_their_heads() -> None:
    value = torch.ones(1, 1, 64, 64)

    def mixed(part: int | None) -> torch.Tensor:
        torch.manual_seed(0)
        core = AttentionCore(0.5)
        core.part = part
        made: torch.Tensor = core(0 * value, 0 * value, value)
        return torch.stack((made[0, 0, :, 0], torch.rand(64)))

    first, again, second = mixed(0), mixed(0), mixed(1)
    assert torch.equal(first, again)
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])  # what both draw afterwards
