"""Random operators lie between those of a profile, and are none of them."""

from __future__ import annotations

from benchmarks.random_operations import unseen
from profiles.measure.plan import default_jobs, operations
from profiles.measure.timing.tasks import FORWARD, PRODUCTS, Operation
from profiles.units import GB, TFLOPS

SEEN = [
    one
    for job in default_jobs("cpu")
    for one in operations(job, parts=[1, 2], precisions=("fp32",), most_tokens=2048)
]


def drawn(count: int = 60, most_bytes: float = GB) -> list[tuple[Operation, ...]]:
    return unseen(SEEN, count, most_bytes=most_bytes, most_flops=TFLOPS)


def test_they_are_as_many_as_asked_and_new() -> None:
    found = drawn()
    shapes = {(passes[0].kind, passes[0].shape) for passes in found}
    assert len(found) == len(shapes) == 60
    assert not shapes & {(one.kind, one.shape) for one in SEEN}


def test_each_dimension_lies_between_seen_ones() -> None:
    for first, *_ in drawn():
        alike = [one.shape for one in SEEN if one.kind == first.kind]
        for size, sizes in zip(first.shape, zip(*alike, strict=True), strict=True):
            assert min(sizes) <= size <= max(sizes)


def test_every_pass_of_a_kind_is_there() -> None:
    for passes in drawn():
        assert passes[0].direction == FORWARD
        expected = 3 if passes[0].kind in PRODUCTS else 2
        assert len({one.direction for one in passes}) == len(passes) == expected
        assert len({one.shape for one in passes}) == 1


def test_the_same_each_time_and_none_too_large() -> None:
    assert drawn() == drawn()
    assert drawn(most_bytes=1.0) == []
