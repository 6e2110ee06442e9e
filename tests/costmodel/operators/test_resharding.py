"""From one placement to another: which collectives, of how many bytes."""

from __future__ import annotations

from itertools import product

import pytest

from costmodel.layout.sharding_spec import PARTIAL, WHOLE, settled
from costmodel.machine.topology import MeshAxis, joint, mesh_axes
from costmodel.operators.loop_sharding import local_bytes, redistribution
from profiles.errors import InvalidSpec

MESH = mesh_axes(dp=2, tp=4)
SIZE = 800.0


@pytest.mark.parametrize(
    ("have", "want", "kind", "size"),
    [
        (WHOLE, "batch", None, 0.0),
        ("batch", "batch", None, 0.0),
        ("sequence", WHOLE, "all_gather", SIZE),
        (PARTIAL, WHOLE, "all_reduce", SIZE),
        (PARTIAL, "sequence", "reduce_scatter", SIZE),
        ("sequence", "heads", "all_to_all", SIZE / 4),
    ],
)
def test_one_axis(have: str, want: str, kind: str | None, size: float) -> None:
    steps = redistribution((WHOLE, have), (WHOLE, want), MESH, SIZE)
    assert [(one.kind, one.size_bytes) for one in steps] == (
        [(kind, size)] if kind else []
    )


def test_other_axes_make_a_collective_smaller() -> None:
    (step,) = redistribution(("batch", PARTIAL), ("batch", WHOLE), MESH, SIZE)
    assert (step.kind, step.axis.name, step.size_bytes) == (
        "all_reduce",
        "tp",
        SIZE / 2,
    )


def test_what_makes_the_tensor_smaller_comes_first() -> None:
    steps = redistribution((PARTIAL, "heads"), ("batch", WHOLE), MESH, SIZE)
    assert [(one.kind, one.size_bytes) for one in steps] == [
        ("reduce_scatter", SIZE / 4),
        ("all_gather", SIZE / 2),
    ]


def test_nothing_is_sent_on_an_axis_of_one() -> None:
    mesh = mesh_axes(tp=1)
    assert redistribution((PARTIAL,), (WHOLE,), mesh, SIZE) == ()


def test_the_way_back_of_a_sum_is_whole() -> None:
    assert settled(("batch", PARTIAL)) == ("batch", WHOLE)


def test_local_bytes_add_up() -> None:
    words = ("batch", WHOLE, PARTIAL)
    for placed in product(words, repeat=2):
        rows, columns = (word == "batch" for word in placed)
        ways = (2 if rows else 1) * (4 if columns else 1)
        assert local_bytes(placed, MESH, SIZE) == SIZE / ways


def test_axes_join_into_one_group() -> None:
    assert joint(MESH) == MeshAxis(name="dp+tp", size=8, stride=1)
    with pytest.raises(InvalidSpec, match="tp=0"):
        mesh_axes(tp=0)
