"""Buckets behind the last backward, by hand."""

from __future__ import annotations

import pytest

from costmodel.timeline.timeline import reduce_tail_s


@pytest.mark.parametrize(
    ("reduce_s", "backward_s", "buckets", "tail_s"),
    [
        (2.0, 4.0, 1, 2.0),  # one bucket is ready only at the end
        (2.0, 4.0, 2, 1.0),  # the first, 1 s, hides; the second does not
        (8.0, 4.0, 2, 6.0),  # ready 2 s before the end, 8 s long
        (0.0, 4.0, 3, 0.0),
        (2.0, 0.0, 4, 2.0),  # nothing to hide behind
    ],
)
def test_by_hand(
    reduce_s: float, backward_s: float, buckets: int, tail_s: float
) -> None:
    found = reduce_tail_s(reduce_s, backward_s, buckets=buckets, overlap=True)
    assert float(found) == pytest.approx(tail_s)


def test_without_overlap_nothing_hides() -> None:
    assert float(reduce_tail_s(2.0, 4.0, buckets=4, overlap=False)) == 2.0
