"""Every layout trains like one process in plain PyTorch, and sends what is priced."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from costmodel.layout.strategy import spell_out
from costmodel.schedule.schedules import FLUSHED, require_schedule
from costmodel.support.support_table import refusals
from tests.support.matrix import Seen, seen_by_all
from tests.support.priced import unlike_priced
from tests.support.training import ADAMW, FEW_STEPS, SGD
from tests.support.training_cases import (
    BATCH,
    USUAL,
    WORLDS,
    cases_of,
    choice_of,
    job,
    usual,
)

LOSS, NORM, TENSORS = 1e-5, 1e-5, 1e-4
# Over all parameters, of ten steps: 2e-6 were seen at the most. Two steps without
# weight decay are 5.9e-5 away, one norm's weights that are not updated 4.2e-4.
PARAMETERS = 2e-5
# A norm's weights lie about 1 and move by 1e-4 in all: their rounding shows.
UPDATES = 1e-3


@pytest.mark.row(
    "C1",
    "loss of each layout after some steps, against one process",
    expected="1e-5",
    evidence="computed",
)
@pytest.mark.row(
    "E1", "loss of tp = 2 and 4, against tp = 1", expected="1e-5", evidence="computed"
)
@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
def test_layouts_train_like_one_process(world: int) -> None:
    usual_cases = [one for one in cases_of(world) if usual(*one)]
    for case, seen in seen_by_all(world, usual_cases, steps=FEW_STEPS).items():
        _require_alike(case, seen)


@pytest.mark.matrix
@pytest.mark.parametrize("world", [world for world in WORLDS if world > 1])
def test_the_rest_of_the_matrix_does_so_too(world: int) -> None:
    others = [one for one in cases_of(world) if not usual(*one)]
    for case, seen in seen_by_all(world, others, ADAMW).items():
        _require_alike(case, seen)


@pytest.mark.matrix
@pytest.mark.parametrize("world", WORLDS)
def test_with_sgd_each_tensor_does_so_by_itself(world: int) -> None:
    """So is what the steps changed of each: a gradient of the wrong size has nowhere
    to hide."""
    for case, seen in seen_by_all(world, cases_of(world), SGD).items():
        _require_alike(case, seen)
        for part, most in (("parameters", TENSORS), ("updates", UPDATES)):
            assert seen.worst(part)[0] < most, (case, part, seen.worst(part))


def test_cases_are_unlike_each_other_and_may_run() -> None:
    known = [one for world in WORLDS for one in cases_of(world)]
    assert set(_usual_cases()) <= set(known)
    unlike = {(family, choice_of(family, name)) for family, name in known}
    assert len(unlike) == len(known) >= 130
    assert len(cases_of(8)) >= 32
    for family, name in known:
        choice, asked = choice_of(family, name), job(family)
        require_schedule(
            choice.schedule,
            choice.pp,
            choice.virtual_stages,
            choice.micro_batches(BATCH),
        )
        layout = spell_out(choice, asked.graph, BATCH)
        assert not refusals(layout, asked), (family, name)


@pytest.mark.parametrize("world", [2, 8])
def test_every_schedule_and_level_is_trained_on_few_ranks_and_many(world: int) -> None:
    choices = [choice_of(*one) for one in cases_of(world)]
    assert {one.schedule for one in choices if one.pp > 1} == set(FLUSHED)
    assert {one.zero for one in choices if one.dp * one.cp > 1} == {0, 1, 2, 3}
    assert {one.cp_kind for one in choices if one.cp > 1} == {
        "ring",
        "all-gather",
        "ulysses",
    }
    assert {one.sequence_parallel for one in choices if one.tp > 1} == {True, False}
    assert any(one.ep > 1 for one in choices)
    assert any(one.offload.optimizer for one in choices)


def test_every_schedule_is_trained_with_every_level_of_zero() -> None:
    """PyTorch's own wrappers lose gradients in some of these pairs, and say nothing."""
    known = [choice_of(*one) for world in WORLDS for one in cases_of(world)]
    both = [one for one in known if one.pp > 1 and one.dp * one.cp > 1]
    trained = {(one.schedule, one.zero) for one in both}
    assert trained == set(product(FLUSHED, range(4)))


def _usual_cases() -> Iterator[tuple[str, str]]:
    for family in USUAL:
        yield from ((family, name) for name in USUAL[family].split())
    yield from cases_of(1)


def _require_alike(case: tuple[str, str], seen: Seen) -> None:
    """The losses, the first gradients and the last parameters, on every rank;
    and the executed stream, its collectives counted and weighed, is the priced one."""
    assert seen.losses < LOSS, case
    assert seen.norm < NORM, case
    for part, most in (("gradients", TENSORS), ("parameters", PARAMETERS)):
        assert seen.apart(part) < most, (case, part, seen.apart(part))
    assert seen.worst("gradients")[0] < TENSORS, (case, seen.worst("gradients"))
    assert not unlike_priced(*case, seen.recorded)
