"""Peaks of allocated memory that ranks with experts had, against what is predicted.

Measured by `python -m benchmarks.closed_loop --model benchmarks/models/mixtral.json
--ranks 2` (CPU, torch 2.13), 2026-11-22, decimal megabytes of the rank with most.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.loop_layouts import named_layouts
from costmodel.simulation.estimator import estimate
from profiles.models.catalog import model
from profiles.units import MB
from tests.support.problems import local

MEASURED_MB = {
    "dp": 284.4,
    "dp, ep 2": 199.8,
    "zero 1, ep 2": 211.9,
    "tp, ep 2": 143.5,
    "pp 1f1b": 162.8,
    "cp ring, ep 2": 200.6,
    "dp, micro-batch 4": 329.4,
    "dp, ep 2, micro-batch 4": 246.3,
    "zero 1": 254.5,
    "zero 2, ep 2": 207.7,
    "zero 3": 198.9,
    "zero 3, ep 2": 183.4,
    "tp": 232.0,
    "pp gpipe": 230.8,
    "pp interleaved": 181.3,
    "dp, ep 2, recompute full": 174.6,
}
WITHIN = 0.055
MODEL = Path(__file__).parents[2] / "benchmarks" / "models" / "mixtral.json"


def test_peaks_of_experts_on_two_ranks_are_predicted() -> None:
    """A rank that shares its experts with nobody has a gathered copy of them under
    ZeRO-1 and 2 all the same; where only tp is above 1 nothing is sharded; a pass has a
    layer, the next one and one layer's experts at once under ZeRO-3."""
    where, seen = local(), set()
    for name, job, layout in named_layouts(model(str(MODEL)), where, 2):
        if name not in MEASURED_MB:
            continue
        seen.add(name)
        found = estimate(job, where.cluster, layout, on=where)
        most = max(float(rank.allocated) for rank in found.memory)
        assert most == pytest.approx(MEASURED_MB[name] * MB, rel=WITHIN), name
    assert seen == set(MEASURED_MB)
