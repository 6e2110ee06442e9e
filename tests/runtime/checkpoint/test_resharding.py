"""A run that goes from one layout to another has its state to the bit, and its place in
the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from costmodel.layout.strategy import Uniform
from profiles.models.job import Job
from tests.support.resharding import DENSE_JOB, LAYOUTS, MIXED, MIXED_JOB, matrix


def require_handed(asked: Job, layouts: Mapping[str, Uniform], folder: Path) -> None:
    found = matrix(asked, layouts, folder)
    assert len(found) == len(layouts) ** 2
    for pair, handed in found.items():
        assert handed.unlike == (), pair
        assert handed.holds, (pair, handed.loss)


def test_layouts_hand_their_state_to_each_other(tmp_path: Path) -> None:
    names = ("tp2", "pp2", "fsdp4")
    require_handed(DENSE_JOB, {name: LAYOUTS[name] for name in names}, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("asked", "layouts"),
    [(DENSE_JOB, LAYOUTS), (MIXED_JOB, MIXED)],
    ids=["dense", "experts"],
)
def test_every_layout_hands_its_state_to_every_other(
    tmp_path: Path, asked: Job, layouts: Mapping[str, Uniform]
) -> None:
    require_handed(asked, layouts, tmp_path)
