"""A run that goes from one layout to another has its state to the bit, and its place in
the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.resharding import DENSE_JOB, LAYOUTS, MIXED, MIXED_JOB, matrix


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_every_layout_hands_its_state_to_every_other(tmp_path: Path, kind: str) -> None:
    if kind == "dense":
        names = ("tp2", "pp2", "fsdp4", "dp2×tp2", "dp2×tp2, ZeRO-3")
        asked, layouts = DENSE_JOB, {name: LAYOUTS[name] for name in names}
    else:
        asked, layouts = MIXED_JOB, MIXED
    found = matrix(asked, layouts, tmp_path)
    assert len(found) == len(layouts) ** 2
    for pair, handed in found.items():
        assert handed.unlike == (), pair
        assert handed.holds, (pair, handed.loss)
