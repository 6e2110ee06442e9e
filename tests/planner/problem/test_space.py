"""The space is what `legality` calls legal, each layout once."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.layout import CP_KINDS
from costmodel.layout.strategy import (
    RECOMPUTES,
    SCHEDULES,
    Columns,
    Uniform,
    split_layers,
)
from costmodel.options.pins import Pins
from costmodel.schedule.schedules import FLUSHED, flushes
from costmodel.support.legality import MOST_PASSES, violations
from costmodel.support.support_table import refusals
from planner.problem.axes import Axes
from planner.problem.problem import Problem
from planner.problem.space import Space
from planner.problem.table import divisors, length, take
from planner.search.bounds import floor_bytes, leaf_bounds
from profiles.errors import InvalidSpec
from profiles.models.spec import DecoderSpec, Numerics
from tests.support.problems import all_pins, local, on, problem


def candidates(posed: Problem) -> list[Uniform]:
    space = Space(problem=posed)
    leaves = space.leaves(space.branches)
    return [space.choice(leaves, row) for row in range(len(leaves))]


def decoder(posed: Problem, **changes: Any) -> DecoderSpec:
    spec = posed.job.spec
    assert isinstance(spec, DecoderSpec)
    return replace(spec, **changes)


def canonical(choice: Uniform, micro_batches: int, *, pinned: bool) -> Uniform:
    """The one row that stands for all that mean the same layout, but for a schedule
    that is pinned."""
    if choice.cp == 1:
        choice = replace(choice, cp_kind="ring")
    same = choice.pp == 1 or (micro_batches == 1 and choice.schedule == "gpipe")
    if same and not pinned:
        choice = replace(choice, schedule="1f1b")
    if choice.zero == 0 or choice.zero_group * choice.cp == 1:
        choice = replace(choice, zero=0, zero_group=1)
    return choice


def every_legal_choice(posed: Problem) -> set[Uniform]:
    """All combinations of all values, by brute force, less the illegal ones."""
    parts = divisors(posed.gpus)
    sizes = divisors(posed.job.global_batch)
    layers = range(1, posed.job.graph.body + 1)
    found = set()
    degrees = [four for four in product(parts, repeat=4) if np.prod(four) == posed.gpus]
    searched = SCHEDULES if posed.allow_async else FLUSHED
    names = searched if posed.pins.schedule is None else (posed.pins.schedule,)
    rest = (sizes, names, layers, range(4), parts, (False, True), CP_KINDS)
    for (tp, pp, dp, cp), values in product(degrees, product(*rest)):
        size, schedule, virtual, zero, group, split, kind = values
        if size * dp > posed.job.global_batch:
            continue
        choice = Uniform(
            tp=tp,
            pp=pp,
            dp=dp,
            cp=cp,
            micro_batch=size,
            schedule=schedule,
            virtual_stages=virtual,
            zero=zero,
            zero_group=group,
            sequence_parallel=split,
            cp_kind=kind,
            flash_attention=posed.flash_attention,
            precision=posed.precision,
        )
        if not list(violations(choice, posed.job, posed.machine.cluster)):
            micro_batches = choice.micro_batches(posed.job.global_batch)
            pinned = posed.pins.schedule is not None
            found.add(canonical(choice, micro_batches, pinned=pinned))
    return found


@pytest.mark.parametrize(("gpus", "batch"), [(1, 4), (2, 3), (4, 2), (6, 3)])
def test_the_space_is_every_legal_layout_once(gpus: int, batch: int) -> None:
    posed = problem(gpus=gpus, global_batch=batch, pins=Pins(recompute="none"))
    found = candidates(posed)
    assert len(found) == len(set(found))
    assert set(found) == every_legal_choice(posed)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_searched_when_pinned_is_every_legal_layout(name: str) -> None:
    pins = Pins(recompute="none", schedule=name)
    posed = problem(gpus=4, global_batch=4, pins=pins, allow_async=not flushes(name))
    found = candidates(posed)
    assert found
    assert set(found) == every_legal_choice(posed)


def test_schedules_without_a_flush_are_searched_where_they_are_allowed() -> None:
    pins = Pins(recompute="none")
    posed = problem(gpus=4, global_batch=4, pins=pins, allow_async=True)
    found = candidates(posed)
    assert len(found) == len(set(found))
    assert set(found) == every_legal_choice(posed)
    assert {one.schedule for one in found} == set(SCHEDULES)


@pytest.mark.parametrize("layers", [3, 5, 7])
def test_layers_that_do_not_divide_are_split_legally(layers: int) -> None:
    posed = problem(gpus=2, global_batch=4, pins=Pins(recompute="none"))
    spec = decoder(posed, layers=layers)
    posed = replace(posed, job=replace(posed.job, spec=spec))
    assert set(candidates(posed)) == every_legal_choice(posed)


def test_grouped_queries_and_odd_widths_are_split_legally() -> None:
    """8 heads but 2 key-value heads, and an MLP that 3 and 6 divide."""
    posed = problem(gpus=6, global_batch=3, pins=Pins(recompute="none"))
    spec = decoder(posed, heads=12, kv_heads=4, head_dim=16, ffn_hidden=768)
    posed = replace(posed, job=replace(posed.job, spec=spec))
    assert set(candidates(posed)) == every_legal_choice(posed)
    assert {choice.tp for choice in candidates(posed)} == {1, 2}


@given(
    pins=all_pins(), gpus=st.integers(1, 12), batch=st.sampled_from((4, 6, 8, 12, 24))
)
@settings(max_examples=60)
def test_candidates_are_legal_and_keep_the_pins(
    pins: Pins, gpus: int, batch: int
) -> None:
    posed = problem("gpt-mini", gpus, global_batch=batch, pins=pins)
    space = Space(problem=posed)
    leaves = space.leaves(space.branches)
    assert len(leaves) == space.branches["leaves"].sum()
    rng = np.random.default_rng(0)
    for row in rng.permutation(len(leaves))[:20]:
        choice = space.choice(leaves, int(row))
        assert choice.gpus == gpus
        assert list(violations(choice, posed.job, posed.machine.cluster)) == []
        pinned = {
            name: getattr(pins, name)
            for name in Pins.__dataclass_fields__
            if hasattr(choice, name) and getattr(pins, name) is not None
        }
        if choice.recompute_layers is None and "recompute_layers" in pinned:
            graph, stages = posed.job.graph, choice.pp * choice.virtual_stages
            most = max(split_layers(graph.body, stages, graph.tail))
            assert pinned.pop("recompute_layers") >= most, "that is all of them"
        assert pinned == {name: getattr(choice, name) for name in pinned}


def test_pins_narrow_the_space_and_lose_nothing() -> None:
    free = candidates(problem(gpus=4))
    for pins in (Pins(tp=2), Pins(zero=3), Pins(recompute="full"), Pins(micro_batch=2)):
        (name, value) = next(
            (name, getattr(pins, name))
            for name in ("tp", "zero", "recompute", "micro_batch")
            if getattr(pins, name) is not None
        )
        kept = {choice for choice in free if getattr(choice, name) == value}
        assert kept <= set(candidates(problem(gpus=4, pins=pins)))


def test_a_count_of_micro_batches_can_be_pinned() -> None:
    found = candidates(problem(gpus=4, pins=Pins(micro_batches=2)))
    assert found
    assert {choice.micro_batches(8) for choice in found} == {2}


def test_a_zero_level_that_was_asked_for_is_called_so() -> None:
    """On one rank ZeRO-1 shards nothing, and is there if it is asked for by name."""
    axes = Axes(problem=problem(gpus=1))
    assert axes.zeros(1, 1) == [(0, 1)]
    asked = Axes(problem=problem(gpus=1, pins=Pins(zero=1)))
    assert asked.zeros(1, 1) == [(1, 1)]
    assert asked.zeros(4, 1) == [(1, 2), (1, 4)]


def test_one_layer_has_no_pipeline_but_for_its_head() -> None:
    posed = problem(gpus=4)
    one = decoder(posed, layers=1)
    found = candidates(replace(posed, job=replace(posed.job, spec=one)))
    assert {choice.pp for choice in found} == {1, 2}


def test_a_prime_number_of_gpus_is_all_of_one_degree() -> None:
    found = candidates(problem("gpt-mini", 7, global_batch=14))
    ways = {(choice.tp, choice.pp, choice.dp, choice.cp) for choice in found}
    assert ways == {(1, 7, 1, 1), (1, 1, 7, 1)}


def test_the_leanest_leaves_hold_the_least_of_each_branch() -> None:
    posed = problem(gpus=8)
    space = Space(problem=posed)
    rng = np.random.default_rng(1)
    some = rng.permutation(length(space.branches))[:150]
    branches = take(space.branches, some)
    columns, branch = space.leanest(branches)
    peaks = leaf_bounds(posed, columns).needed_bytes
    least = floor_bytes(peaks, branch)
    for row in range(length(branches)):
        leaves = space.leaves(take(branches, np.array([row])))
        every = leaf_bounds(posed, leaves).needed_bytes
        assert least[row] == pytest.approx(every.min(), rel=1e-12)


@pytest.mark.parametrize(("gpus", "batch"), [(1, 4), (2, 3), (4, 2), (6, 6), (8, 4)])
def test_an_executable_space_is_every_legal_layout_that_is_carried_out(
    gpus: int, batch: int
) -> None:
    """Dropout of attention forbids cp; without it everything searched is executed."""
    plain = problem(gpus=gpus, global_batch=batch, where=local())
    dropped = Numerics(attention_dropout=0.1)
    job = replace(plain.job, spec=decoder(plain, numerics=dropped))
    free = replace(plain, job=job)
    found = candidates(replace(free, executable=True))
    assert found
    assert len(found) == len(set(found))
    every = candidates(free)
    assert found == [one for one in every if not refusals(one, job)]
    assert gpus == 1 or len(found) < len(every)
    assert candidates(replace(plain, executable=True)) == candidates(plain)


def test_an_executable_space_obeys_the_model_too() -> None:
    """2 key-value heads forbid tp 4; an odd vocabulary any."""
    posed = problem(gpus=4, where=local(), executable=True)

    def widths(**changes: Any) -> set[int]:
        job = replace(posed.job, spec=decoder(posed, **changes))
        return {choice.tp for choice in candidates(replace(posed, job=job))}

    assert widths() == {1, 2, 4}
    assert widths(dropout=0.1) == {1, 2, 4}
    assert widths(kv_heads=2) == {1, 2}
    assert widths(vocab=511) == {1}
    assert widths(position="alibi") == set()


def test_other_clusters_are_searched_whole() -> None:
    assert {choice.cp for choice in candidates(problem(gpus=4))} == {1, 2, 4}


def test_an_absurd_space_is_refused_not_spelled_out() -> None:
    posed = problem("deepseek-v3", 5040, global_batch=735_134_400)
    with pytest.raises(InvalidSpec, match=r"pin\s--micro-batch"):
        _ = Space(problem=posed).trunks


def test_steps_too_long_to_simulate_are_left_out() -> None:
    posed = problem(gpus=1, global_batch=8_000_000, pins=Pins(recompute="none"))
    counts = Space(problem=posed).branches["micro_batches"]
    assert 2 * counts.max() <= MOST_PASSES
    assert counts.max() == 2_000_000


def test_codes_are_those_of_the_columns() -> None:
    axes = Axes(problem=problem(gpus=4, pins=Pins(schedule="gpipe")))
    assert [SCHEDULES[code] for code, _ in axes.schedules(4, 4)] == ["gpipe"]
    codes = [RECOMPUTES[code] for (code,) in axes.recomputes()]
    assert codes == list(RECOMPUTES)
    assert on().island.domain == 8


@pytest.mark.parametrize(("pp", "most"), [(1, 4), (2, 2)])
def test_more_layers_than_a_stage_has_are_all_of_them(pp: int, most: int) -> None:
    pins = Pins(recompute="full", pp=pp, schedule="1f1b")
    for first in (1, most, 41):
        posed = problem(gpus=2, pins=replace(pins, recompute_layers=first))
        said = first if first < most else None
        assert {one.recompute_layers for one in candidates(posed)} == {said}


def test_where_no_layer_is_made_again_one_name_stands_for_all() -> None:
    posed = problem(pins=Pins(recompute_layers=0))
    assert {one.recompute for one in candidates(posed)} == {"none"}


@settings(max_examples=20)
@given(
    cp=st.sampled_from((2, 4, 8)),
    tp=st.sampled_from((1, 2)),
    micro_batch=st.sampled_from((1, 4)),
    recompute=st.sampled_from(("none", "selective", "full")),
)
def test_what_rsa_does_all_gather_does_no_worse(
    cp: int, tp: int, micro_batch: int, recompute: str
) -> None:
    """So that it is looked at only where it is asked for."""
    where = on("p3.16xlarge")
    posed = problem("gpt-mini", tp * cp, global_batch=4, where=where)
    rsa, gathered = (
        Uniform(
            tp=tp,
            cp=cp,
            cp_kind=kind,
            micro_batch=micro_batch,
            recompute=recompute,
            flash_attention=False,
            precision="fp16",
        )
        for kind in ("rsa", "all-gather")
    )
    assert not list(violations(rsa, posed.job, where.cluster))
    prices = price(Columns.of([rsa, gathered]), posed.job, where)
    for each in (prices.step_time_s, prices.needed_bytes):
        assert each[0] >= each[1]


@pytest.mark.parametrize("asked", [None, "rsa", "ring"])
def test_rsa_is_searched_where_it_is_asked_for(asked: str | None) -> None:
    """Without flash attention, which a V100 has not; else nowhere."""
    pins = Pins(cp=2, cp_kind=asked)
    posed = problem("gpt-mini", 4, global_batch=4, where=on("p3.16xlarge"), pins=pins)
    kinds = {choice.cp_kind for choice in candidates(posed)}
    assert kinds == {asked} if asked else kinds and "rsa" not in kinds
    newer = replace(posed, flash_attention=True, machine=on("dgx-a100-80gb"))
    assert bool(candidates(newer)) == (asked != "rsa")
