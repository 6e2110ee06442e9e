"""The time limit: all steps of a plan share it, and bounds hold whenever it ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from costmodel.layout.strategy import Uniform
from costmodel.options.pins import Pins
from planner.analysis import infeasibility as diagnosis
from planner.analysis import largest
from planner.analysis.largest import Largest, maximize
from planner.analysis.remedies import Change
from planner.analysis.scaling import plans
from planner.api import plan, refined, sharded, solve
from planner.baselines import tofu
from planner.options import Around
from planner.problem import question
from planner.problem.problem import Candidate, Objective, Problem
from planner.problem.solution import EXACT, Solution
from planner.report.extras import beside
from planner.search import remat_per_stage as polish
from planner.search import search
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Clock, Limits
from planner.sharding import intra_op
from planner.sharding import refine as own_shardings
from planner.sharding import report as shardings
from planner.sharding.intra_op import BlockSharding, Posed
from profiles.errors import OutOfTime
from tests.planner.analysis.test_largest import asked
from tests.support import islands
from tests.support.problems import problem


class Hand:
    """A clock's hand, which moves by itself so much whenever it is looked at."""

    def __init__(self, each_s: float = 0.0) -> None:
        self.now_s, self.each_s = 0.0, each_s

    def __call__(self) -> float:
        self.now_s += self.each_s
        return self.now_s


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """One that stands still."""
    found = Hand()
    monkeypatch.setattr(search, "perf_counter", found)
    return found


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, hand: Hand) -> list[Candidate]:
    """What is simulated, a second each."""
    found, simulate = list[Candidate](), Problem.simulate

    def slowly(*arguments: object) -> Candidate:
        hand.now_s += 1.0
        found.append(simulate(*arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(Problem, "simulate", slowly)
    return found


def test_all_steps_of_a_plan_share_its_time(simulated: list[Candidate]) -> None:
    """What fits is known after a second or two; retention by stage, runners-up and
    shardings would take a dozen more."""
    posed = problem("gpt-13b", 8, global_batch=64)
    limit_s = 2.5
    found = plan(posed.job, posed.machine.cluster, gpus=8, time_limit_s=limit_s)
    assert found.best is not None
    assert (found.added, found.operators) == (None, None)
    checks = 2  # of the search's answer, and of the recommended one
    assert len(simulated) <= limit_s + 1 + checks
    simulated.clear()
    found = plan(posed.job, posed.machine.cluster, gpus=8)
    assert len(simulated) > 2 * (limit_s + 1 + checks)


def test_nothing_is_priced_once_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    posed = problem("gpt-13b", 8, global_batch=64)
    found = solve(posed, BranchAndBound(), Limits(runners_up=0))

    def priced(*_: object) -> None:
        raise AssertionError("it is late")

    for name in ("floor_s", "leaf_bytes", "leaf_s", "rough_s"):
        monkeypatch.setattr(polish, name, priced)
    late = Limits(time_limit_s=0.0).begun()
    assert refined(posed, found, posed.pins, late) is found
    assert sharded(posed, found, late) is found


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.MEMORY])
def test_bounds_hold_whenever_time_ends(hand: Hand, objective: Objective) -> None:
    posed = problem("gpt-mini", 4, objective=objective)
    best = BranchAndBound().solve(posed, Limits()).value
    hand.each_s, late, answers = 1.0, 0, 0
    for limit_s in range(0, 120, 10):
        try:
            found = BranchAndBound().solve(posed, Limits(time_limit_s=limit_s))
        except OutOfTime:
            late += 1
            assert not answers, "with more time there is an answer too"
            continue
        answers += 1
        assert found.lower <= best * (1 + EXACT)
        assert best <= found.value * (1 + EXACT)
    assert late
    assert answers


def test_bounds_over_islands_hold_whenever_time_ends(hand: Hand) -> None:
    posed = islands.asked(islands.joined("p3.16xlarge", "dgx-a100-80gb"), "gpt-125m")
    posed = replace(posed, pins=Pins(cp=1))
    whole = solve(posed, BranchAndBound(), Limits())
    hand.each_s = 1.0
    for limit_s in (0, 5, 10, 30, 100):
        found = solve(posed, BranchAndBound(), Limits(time_limit_s=limit_s))
        assert found.best is not None
        assert found.lower <= whole.value * (1 + EXACT)
        assert whole.value <= found.value * (1 + EXACT)


def test_a_recursive_partition_ends_between_levels(
    monkeypatch: pytest.MonkeyPatch, hand: Hand
) -> None:
    posed, levels, pose = problem("gpt-mini", 64, global_batch=64), [], tofu.pose

    def slowly(*arguments: Any) -> Posed:
        hand.now_s += 1.0
        levels.append(arguments)
        return pose(*arguments)

    monkeypatch.setattr(tofu, "pose", slowly)
    with pytest.raises(OutOfTime):
        tofu.Tofu().solve(posed, Limits(time_limit_s=2.5))
    assert len(levels) == 3, "of six levels, those that began in time"


def test_limits_count_from_when_they_began(hand: Hand) -> None:
    limits = Limits(time_limit_s=10.0)
    shared = limits.begun()
    hand.now_s = 8.0
    assert Clock(limits=limits).left_s == 10.0
    clock = Clock(limits=shared)
    assert (clock.left_s, clock.share, clock.over) == (2.0, 0.8, False)
    hand.now_s = 12.0
    assert (clock.seconds, clock.left_s, clock.over) == (4.0, 0.0, True)
    with pytest.raises(OutOfTime, match="any of the 7 layouts"):
        clock.require(7)


@pytest.mark.parametrize("tries", [0, 1, 4])
def test_the_largest_so_far(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """As many numbers are tried as there are seconds."""
    tried = list[int]()

    def fits(posed: Problem) -> bool:
        hand.now_s += 1.0
        tried.append(posed.job.seq_len)
        return True

    monkeypatch.setattr(largest, "fits_somehow", fits)
    limits = Limits(time_limit_s=float(tries)).begun()

    def found() -> Largest:
        return maximize(asked("gpt-1.3b", 8), "seq-len", limits)

    if not tries:
        with pytest.raises(OutOfTime):
            found()
        return
    so_far = found()
    assert len(tried) == tries
    assert (so_far.value, so_far.too_large) == (max(tried), None)
    assert not so_far.document()["complete"]
    assert "time limit was reached" in so_far.words


@pytest.mark.parametrize("tries", [0, 1, 2])
def test_a_diagnosis_is_cut_short_and_says_so(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """As many changes are tried as there are seconds."""
    posed, seen = problem("gpt-13b", 1, global_batch=8), list[str]()
    whole = diagnosis.diagnose(posed)
    assert whole.complete
    assert len(whole.changes) > 1
    trying = diagnosis.tried

    def slowly(change: Change, clock: Clock) -> diagnosis.Remedy | None:
        found = trying(change, clock)
        hand.now_s += 1.0
        seen.append(change.what)
        return found

    monkeypatch.setattr(diagnosis, "tried", slowly)
    limits = Limits(time_limit_s=float(tries)).begun()
    said = diagnosis.diagnose(posed, limits)
    assert len(seen) == tries
    assert not said.complete
    assert "the time limit was reached before every change was tried" in str(said)
    assert said.constraint.startswith("memory: ")
    assert list(said.changes) == list(whole.changes)[: len(said.changes)]


def test_a_diagnosis_over_islands_is_cut_short(hand: Hand) -> None:
    posed = islands.asked(islands.joined("p3.16xlarge", "dgx-v100-16gb"), "gpt-6.7b")
    posed = replace(posed, pins=Pins(micro_batches=1, recompute="none"))
    limits = Limits(time_limit_s=5.0).begun()
    hand.now_s = 5.0
    said = diagnosis.diagnose(posed, limits)
    assert not said.complete
    assert not said.changes


def test_a_diagnosis_without_time_for_one_layout_says_so() -> None:
    """Time may be over between the first look and the first layout: a search that has
    looked at nothing is no proof that nothing is legal."""
    posed = problem("gpt-13b", 1, global_batch=8)

    class Short(Clock):
        """Over once a layout is asked for, not before."""

        @property
        def over(self) -> bool:
            return True

        def require(self, considered: int = 0) -> None:
            """There is time to begin."""

    said = diagnosis.constraint_of(posed, Short(limits=Limits()))
    assert said.startswith("memory: no layout of gpt-13b fits on 1 GPUs")


def test_a_diagnosis_has_words_whenever_time_ends(hand: Hand) -> None:
    posed = problem("gpt-13b", 1, global_batch=8)
    hand.each_s = 1.0
    for limit_s in (0, 2, 3, 5, 8, 12, 20):
        said = diagnosis.diagnose(posed, Limits(time_limit_s=limit_s).begun())
        assert said.constraint.startswith("memory: ")


def test_shardings_take_what_is_left_of_the_time(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    posed, given = problem("gpt-tiny", 2), list[float]()
    choice = Uniform(tp=2, sequence_parallel=True, micro_batch=4)
    solving = intra_op.solve

    def slowly(*asked: Any, time_limit_s: float, **more: Any) -> BlockSharding:
        given.append(time_limit_s)
        return solving(*asked, **more)

    monkeypatch.setattr(shardings, "solve", slowly)
    limits = Limits(time_limit_s=5.0).begun()
    hand.now_s = 3.0
    shardings.layout_shardings(posed, choice, clock=Clock(limits=limits))
    assert given == [2.0]
    hand.now_s = 5.0
    with pytest.raises(OutOfTime):
        shardings.layout_shardings(posed, choice, clock=Clock(limits=limits))


def test_a_plan_is_given_without_the_shardings_that_took_too_long(hand: Hand) -> None:
    posed = problem("gpt-tiny", 2, pins=Pins(tp=2))
    found = solve(posed, BranchAndBound(), Limits(runners_up=0))
    limits = Limits(time_limit_s=5.0).begun()
    hand.now_s = 5.0

    def anew(_: Problem) -> Solution:
        raise AssertionError("nothing is planned anew")

    said = beside(posed, found, Around(shardings=True), None, anew, limits)
    assert said.members == {"shardings": None}
    assert "time limit was reached" in dict(said.lines)["shardings"]


def test_own_shardings_are_not_solved_for_once_it_is_late(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Posing a block takes time, too: what is bounded then is, what is not stays."""
    posed = problem("gpt-mini", 2, pins=Pins(tp=2))
    found = solve(posed, BranchAndBound(), Limits(runners_up=0))
    posing = intra_op.pose

    def slowly(*asked: Any) -> Posed:
        hand.now_s += 10.0
        return posing(*asked)

    def programmed(*_: Any) -> Any:
        raise AssertionError("it is late")

    monkeypatch.setattr(own_shardings, "pose", slowly)
    monkeypatch.setattr(own_shardings, "_by_program", programmed)
    peaks = cycle((0.0, 1e30))  # the preset's, and the best one's without limits
    monkeypatch.setattr(own_shardings, "peak_bytes", lambda *_: next(peaks))
    limits = Limits(time_limit_s=5.0).begun()
    said = sharded(posed, found, limits)
    assert said.best is found.best
    assert said.operators is not None
    assert said.operators.proofs
    for proof in said.operators.proofs:
        assert 0 <= proof.lower_s < proof.best_s == proof.own_s


def test_why_nothing_fits_on_a_number_of_gpus_keeps_its_time(hand: Hand) -> None:
    posed = problem("gpt-13b", 1, global_batch=8)

    def late(asked: Problem, limits: Limits) -> Solution:
        found = solve(asked, BranchAndBound(), limits)
        hand.now_s += 5.0
        return found

    limits = Limits(time_limit_s=5.0)
    (row,) = plans([1], lambda _: question.Posed(problem=posed), late, limits.begun)
    assert row.reason is not None
    assert "the smallest peak" not in row.reason
    (row,) = plans([1], lambda _: question.Posed(problem=posed), late)
    assert row.reason is not None
    assert "the smallest peak" in row.reason
