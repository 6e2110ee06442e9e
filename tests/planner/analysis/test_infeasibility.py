"""No layout: the tightest constraint, and a change that really helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.layout.offload import NOTHING, Offload, parse_offload
from costmodel.options.pins import Pins
from costmodel.support.legality import MOST_PASSES
from planner.analysis.infeasibility import diagnose, tried
from planner.analysis.remedies import Change, more_gpus
from planner.api import solve
from planner.problem.memory_bound import states_bytes, widest_bytes
from planner.problem.problem import Problem
from planner.problem.question import dp_to_split
from planner.problem.solution import EXACT, Status
from planner.problem.space import Space
from planner.problem.table import length
from planner.search.bounds import leaf_bounds
from planner.search.branch_and_bound import BranchAndBound
from planner.search.least_peak import leanest
from planner.search.registry import SEARCHES
from planner.search.search import Clock, Limits
from profiles.models.spec import DecoderSpec
from profiles.units import MiB
from tests.support.problems import on, problem, small_problems


def test_memory_names_the_smallest_peak_and_what_works() -> None:
    """Offloading is nearer than more GPUs; both are what a search then finds."""
    posed = problem("gpt-175b", 8, global_batch=64, pins=Pins(cp=1))
    said = diagnose(posed)
    assert said.constraint.startswith("memory: the smallest peak of any layout is ")
    assert "79.2 GiB" in said.constraint
    assert "optimizer states alone are" in said.constraint
    assert said.nearest is not None
    assert "of a node's drives" in said.nearest, "its 2 TiB do not hold 2.6 TiB"
    away, more = said.changes
    assert (away["option"], more["option"]) == (
        "--offload optimizer,parameters --offload-to nvme",
        "--gpus 48",
    )
    for change, other in (
        (away, replace(posed, offload=parse_offload("optimizer,parameters", "nvme"))),
        (more, replace(posed, gpus=48)),
    ):
        found = solve(other, SEARCHES["branch-and-bound"], Limits(runners_up=0))
        assert found.best is not None
        assert found.value <= change["step_time_s"] * (1 + EXACT)


def test_a_batch_that_is_pinned_whole_is_made_smaller() -> None:
    """The largest divisor of the batch that fits: the next one does not."""
    pins = Pins(micro_batches=1, recompute="none", dp=1)
    posed = problem("gpt-1.3b", 8, global_batch=512, pins=pins)
    found = {one["change"]: one for one in diagnose(posed).changes}
    (batch,) = (int(what.split()[-1]) for what in found if what.startswith("a batch"))
    bigger = replace(posed, job=replace(posed.job, global_batch=2 * batch))
    smaller = replace(posed, job=replace(posed.job, global_batch=batch))
    search = SEARCHES["branch-and-bound"]
    assert solve(bigger, search, Limits()).best is None
    assert solve(smaller, search, Limits()).best is not None


def test_the_longest_sequence_by_halves_that_fits_is_named() -> None:
    pins = Pins(tp=1, pp=1, cp=1, micro_batch=1, zero=0, recompute="none")
    whole = problem("gpt-1.3b", 1, global_batch=1, pins=pins)
    half, quarter = (
        replace(whole, job=replace(whole.job, seq_len=length)) for length in (1024, 512)
    )
    search = SEARCHES["branch-and-bound"]
    peaks = []
    for posed in (half, quarter):
        best = solve(posed, search, Limits(runners_up=0)).best
        assert best is not None
        peaks.append(best.estimate.peak_memory_bytes)
    asked = replace(whole, memory_limit_bytes=sum(peaks) / 2)
    (named,) = (
        one for one in diagnose(asked).changes if one["option"] == "--seq-len 512"
    )
    assert named["peak_memory_bytes"] == pytest.approx(peaks[1])


@given(posed=small_problems(), zero=st.sampled_from([None, None, 0, 1, 2, 3]))
def test_no_layout_needs_less_than_its_states(posed: Problem, zero: int | None) -> None:
    offload = NOTHING if zero is None else Offload(optimizer=True, parameters=zero == 3)
    if offload.anything:
        assume(posed.machine.cluster.name != "cpu")
        pins = replace(posed.pins, zero=zero, zero_group=None)
        posed = replace(posed, offload=offload, pins=pins)
    space = Space(problem=posed)
    assume(length(space.branches))
    peaks = leaf_bounds(posed, space.leaves(space.branches)).needed_bytes
    assert states_bytes(posed) <= peaks.min() * (1 + EXACT)


@pytest.mark.parametrize("gpus", [1, 2, 3, 11])
def test_experts_on_an_odd_number_of_gpus_are_sharded_too(gpus: int) -> None:
    """Of a deep and narrow model, whose states are nearly all that it needs."""
    pins = Pins(zero=3, recompute="full", micro_batch=1)
    posed = problem("mixtral-8x7b", gpus, global_batch=gpus, pins=pins)
    spec = posed.job.spec
    assert isinstance(spec, DecoderSpec)
    assert spec.moe is not None
    spec = replace(
        spec,
        layers=400,
        hidden=256,
        heads=2,
        kv_heads=2,
        vocab=512,
        moe=replace(spec.moe, expert_ffn_hidden=512),
    )
    posed = replace(posed, job=replace(posed.job, spec=spec, seq_len=64))
    space = Space(problem=posed)
    peaks = leaf_bounds(posed, space.leaves(space.branches)).needed_bytes
    assert states_bytes(posed) <= peaks.min() * (1 + EXACT)


def worded(posed: Problem, vocab: int, *, tied: bool) -> Problem:
    """*posed* with another vocabulary."""
    spec = posed.job.spec
    assert isinstance(spec, DecoderSpec)
    spec = replace(spec, vocab=vocab, tied_embeddings=tied)
    return replace(posed, job=replace(posed.job, spec=spec))


@given(
    posed=small_problems(),
    vocab=st.sampled_from([1_000, 2**20, 10**9]),
    tied=st.booleans(),
)
def test_no_layout_needs_less_than_its_largest_weight(
    posed: Problem, vocab: int, tied: bool
) -> None:
    posed = worded(posed, vocab, tied=tied)
    space = Space(problem=posed)
    assume(length(space.branches))
    peaks = leaf_bounds(posed, space.leaves(space.branches)).needed_bytes
    assert widest_bytes(posed) <= peaks.min() * (1 + EXACT)


def test_a_weight_too_large_for_any_device_is_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its states would fit on so many devices: it is the table that does not."""
    posed = worded(problem("llama3.2-1b", 4096, global_batch=4096), 10**9, tied=True)
    assert states_bytes(posed) < posed.memory_limit_bytes < widest_bytes(posed)

    def solved(*_: object) -> None:
        raise AssertionError("nothing is searched")

    monkeypatch.setattr(BranchAndBound, "solve", solved)
    found = solve(posed, BranchAndBound(), Limits())
    assert (found.status, found.best) == (Status.INFEASIBLE, None)
    said = diagnose(posed)
    assert "its largest weight alone is" in said.constraint
    assert said.nearest is None


def test_what_states_alone_rule_out_is_not_searched() -> None:
    posed = problem("gpt-1t", 64, global_batch=1536)
    found = solve(posed, SEARCHES["branch-and-bound"], Limits())
    assert (found.status, found.best) == (Status.INFEASIBLE, None)
    assert found.counters.by_memory == found.counters.considered > 0


def test_a_pin_that_costs_too_much_memory_is_the_nearest_change() -> None:
    pins = Pins(tp=1, pp=1, zero=0)
    said = diagnose(problem("gpt-13b", 8, global_batch=64, pins=pins))
    assert said.nearest is not None
    assert said.nearest.startswith("leave --")


def test_nothing_helps_where_a_single_layer_is_too_large() -> None:
    said = diagnose(problem("gpt-tiny", 32, where=on("cpu"), limit_bytes=1 * MiB))
    assert (said.nearest, "no similar layout fits" in str(said)) == (None, True)


@pytest.mark.parametrize("gpus", [11, 1009])
def test_divisibility_names_a_batch_that_divides(gpus: int) -> None:
    posed = problem(gpus=gpus, global_batch=3)
    said = diagnose(posed)
    assert said.constraint.startswith("divisibility: ")
    assert said.nearest is not None
    assert said.nearest.startswith(f"a batch of {gpus} (--global-batch {gpus}): dp")
    raised = replace(posed, job=replace(posed.job, global_batch=gpus))
    assert length(Space(problem=raised).branches)


def test_more_gpus_are_said_with_a_batch_that_they_would_raise() -> None:
    """24 GPUs split 1,024 sequences as 3 stages of dp 8, but a batch that nobody gave
    is raised for even stages: who asks for 24 GPUs alone is given another plan."""
    posed = problem("mixtral-8x7b", 1, global_batch=1024, where=on("l40s-8x"))
    found = {change.problem.gpus: change.option for change in more_gpus(posed)}
    assert found[24] == "--gpus 24 --global-batch 1024"
    assert found[32] == "--gpus 32"
    split = dp_to_split(replace(posed, gpus=24))
    assert 1024 % split


def test_what_divides_and_does_not_fit_is_not_said_to_work() -> None:
    posed = problem("gpt-tiny", 11, global_batch=3, where=on("cpu"), limit_bytes=MiB)
    said = diagnose(posed)
    assert said.nearest is not None
    assert said.nearest.endswith("which divides but does not fit")
    assert "nearest that works" not in str(said)


def test_a_step_too_long_to_simulate_says_so() -> None:
    batch = 2 * MOST_PASSES + 10  # its divisors leave no smaller count of micro-batches
    pins = Pins(micro_batch=1)
    said = diagnose(problem(gpus=1, global_batch=batch, pins=pins))
    assert said.constraint.startswith("size: ")


@pytest.mark.parametrize("batch", [999_999_999, 999_999_937])
def test_a_batch_too_large_for_micro_batches_of_one_is_diagnosed(batch: int) -> None:
    """Whose larger ones can be simulated, and do not fit."""
    posed = problem("gpt-1.3b", 8, global_batch=batch, pins=Pins(cp=1))
    assert leanest(posed, Clock(limits=Limits())) is not None
    said = diagnose(posed)
    assert said.constraint.startswith("memory: ")
    assert said.nearest is not None
    assert said.nearest.startswith("a batch of ")


@pytest.mark.parametrize("gpus", [2, 8])
def test_the_leanest_candidate_holds_the_least(gpus: int) -> None:
    posed = problem("gpt-mini", gpus)
    space = Space(problem=posed)
    peaks = leaf_bounds(posed, space.leaves(space.branches)).needed_bytes
    found = leanest(posed, Clock(limits=Limits()))
    assert found is not None  # by stage less than any preset
    assert found.candidate.estimate.peak_needed_bytes <= peaks.min() * (1 + 1e-3)


def test_what_is_named_has_as_many_sequences_at_once_as_pay() -> None:
    """States on drives are read for each micro-batch: more of them take longer."""
    posed = problem("gpt-175b", 8, global_batch=1024)
    away = replace(posed, offload=parse_offload("optimizer,parameters", "nvme"))
    remedy = tried(Change(what="drives", option="", problem=away))
    assert remedy is not None
    best = remedy.best
    assert best.choice.micro_batch > 1
    wider = away.simulate(replace(best.choice, micro_batch=2 * best.choice.micro_batch))
    slower = wider.estimate.step_time_s >= best.estimate.step_time_s
    assert slower or not away.fits(wider)
    one = replace(away, pins=Pins(micro_batch=1))
    pinned = tried(Change(what="drives", option="", problem=one))
    assert pinned is not None
    assert pinned.best.choice.micro_batch == 1
    assert pinned.best.estimate.step_time_s > best.estimate.step_time_s


def test_more_stages_than_devices_are_not_called_memory() -> None:
    posed = problem("gpt-1.3b", 8, pins=Pins(pp=9))
    said = diagnose(replace(posed, any_stage=True))
    assert said.constraint.startswith("divisibility: 9 stages (--pp) on 8 GPUs")
    assert said.nearest is not None
    assert "--pp 8" in said.nearest
