"""Which of published, swept layouts the planner's prices take."""

from __future__ import annotations

from math import inf

import pytest

from benchmarks.choices import Choice, Swept, by_estimate, choices, losers, share, table
from costmodel.runs.table import Run
from costmodel.runs.validate import compare
from planner.analysis.robust_choice import LARGEST_GAP
from tests.support.published_runs import needs_data, runs_of

# Li et al. (AMP, NeurIPS 2022), real trials of a GPT of 24 layers on twelve V100 and
# four T4: tp, pp, dp, micro-batch, measured seconds of a step. The fastest six, and
# others.
AMP = (
    (1, 8, 2, 1, 1.28),
    (1, 4, 4, 1, 1.47),
    (1, 16, 1, 1, 1.52),
    (1, 4, 4, 2, 1.53),
    (1, 8, 2, 2, 1.54),
    (1, 16, 1, 2, 1.58),
    (1, 8, 2, 4, 1.71),
    (1, 2, 8, 1, 2.23),
    (4, 4, 1, 16, 2.49),
    (2, 2, 4, 1, 2.89),
    (4, 1, 4, 4, 3.29),
)
ALIKE = {
    "device": "mixed: 3x p3.8xlarge + 1x g4dn.12xlarge",
    "layers": "24",
    "hidden": "1024",
    "heads": "16",
    "vocab": "52256",
    "seq_len": "1024",
    "tied_embeddings": "y",
    "gpus": "16",
    "gpus_per_node": "4",
    "precision": "fp16",
    "zero": "0",
    "sequence_parallel": "n",
    "global_batch": "32",
    "recompute": "none",
    "attention_kernel": "fused-softmax",
    "schedule": "1f1b",
    "framework": "DeepSpeed + Megatron-LM v1.1.5 3D parallelism",
}


def amp(number: int, row: tuple[int, int, int, int, float]) -> Run:
    names = ("tp", "pp", "dp", "micro_batch")
    layout = {name: str(size) for name, size in zip(names, row[:4], strict=True)}
    return Run(
        row=number,
        asked={**ALIKE, **layout},
        measured={"step_time_s": str(row[4]), "step_time_origin": "measured"},
        kept={"source": "AMP", "family": "AMP|GPT"},
    )


def test_unlike_islands_take_what_was_measured_best() -> None:
    runs = [amp(number, row) for number, row in enumerate(AMP)]
    (found,) = choices(compare(runs))
    assert len(found.swept) == len(AMP)
    assert found.best.measured_s == AMP[0][-1]
    assert found.is_near
    assert found.is_high
    assert found.loss <= found.loss_by_time


def swept(estimated: float, measured: float, *, fits: bool = True) -> Swept:
    words = f"priced {estimated}"
    return Swept(words=words, estimated_s=estimated, measured_s=measured, fits=fits)


def choice(*layouts: Swept) -> Choice:
    taken = by_estimate(layouts)[0]
    return Choice(source="a paper", named="a group", swept=layouts, taken=taken)


def test_what_is_said_not_to_fit_is_not_taken() -> None:
    found = choice(swept(1.0, 1.0, fits=False), swept(2.0, 1.5), swept(3.0, 1.2))
    assert found.taken.measured_s == 1.5
    assert found.loss == pytest.approx(0.5)
    assert found.faster == 2
    assert (found.is_near, found.is_high, found.loss_by_time) == (False, True, 0)
    (line,) = losers([found])
    assert line.startswith("50.0%, a group")
    assert line.endswith("(said not to fit)")


def test_to_take_what_ran_out_of_memory_is_to_lose_everything() -> None:
    found = choice(swept(1.0, inf), swept(2.0, 1.0))
    assert found.loss == inf
    assert (found.is_near, found.loss_by_time) == (False, 0)
    assert table([found])[-1].endswith("    1")
    assert losers([found])[0].startswith("out of memory")


def test_near_ties_are_chosen_among_as_plan_does() -> None:
    runs = [amp(number, row) for number, row in enumerate(AMP)]
    (found,) = choices(compare(runs))
    fastest = by_estimate(found.swept)[0]
    assert found.taken.fits
    assert found.taken.estimated_s <= fastest.estimated_s / (1 - LARGEST_GAP)


def test_where_nothing_is_said_to_fit_the_fastest_is_taken() -> None:
    found = choice(swept(1.0, 1.0, fits=False), swept(2.0, 1.5, fits=False))
    assert found.is_best


@needs_data
def test_choices_are_in_the_measured_top_three() -> None:
    """What is asked of sweeps: among the best three in four of five groups."""
    swept_by = ("AMP", "BigScience BLOOM", "Hagemann", "InternEvo", "OneFlow", "vTrain")
    found = choices(runs_of(*swept_by))
    assert len({one.source for one in found}) == len(swept_by)
    assert share(found, "is_high") >= 0.8
    mixed = [one for one in found if "mixed" in one.named]
    assert mixed
    assert all(one.is_near for one in mixed)
