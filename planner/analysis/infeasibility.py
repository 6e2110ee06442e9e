"""Why there is no layout: the tightest constraint, and the nearest change that helps.

nothing is legal    the smallest raise of the batch, or the nearest number of GPUs
nothing is executed what the runtime lacks, and the same raise or number
nothing fits        the smallest peak there is, or what the hosts of a node would have
                    to hold; then a pin to drop, something to offload, a smaller batch,
                    a shorter sequence, more GPUs: in the order of
                    `planner.analysis.remedies`

Each is tried on a cheap budget: 1F1B and micro-batches of one sequence, if not pinned;
then of more, while they are faster. Once time is over no more are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, Final

from costmodel.layout import Uniform
from costmodel.options import pins_cut
from costmodel.simulation import Estimate
from costmodel.support import MOST_PASSES, refusals
from planner.analysis.explain import fullest
from planner.analysis.largest import last_true
from planner.analysis.remedies import (
    Change,
    dividing,
    more_gpus,
    offloaded,
    shorter_sequences,
    smaller_batches,
    unpinned,
    without_layers,
)
from planner.cuts import cuts_do_not_fit
from planner.heterogeneous import any_fits
from planner.problem import (
    Candidate,
    Objective,
    Problem,
    Solution,
    Space,
    candidate_words,
    choice_words,
    is_unlike,
    length,
    only_unlike,
    states_bytes,
    too_large,
    widest_bytes,
)
from planner.search import (
    BranchAndBound,
    Clock,
    Limits,
    everything_away,
    first_fit,
    leanest,
)
from profiles.errors import Infeasible, InvalidQuestion, MeshwrightError, OutOfTime
from profiles.units import format_bytes, format_seconds

CHEAP: Final = BranchAndBound(patience=10, tolerance=0.05)
_NOTHING: Final = "no similar layout fits"
_NO_ROOM: Final = "memory: no layout fits whose stages have the layers that are given"
_LATE: Final = "the time limit was reached before every change was tried (--time-limit)"
MOST_TRIED: Final = 10  # changes of a kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change, and the layout that a cheap search finds with it."""

    change: Change
    best: Candidate

    @property
    def words(self) -> str:
        found, batch = self.best.estimate, self.change.problem.job.global_batch
        return (
            f"{self.change}: {candidate_words(self.best, batch)} needs "
            f"{format_bytes(found.peak_needed_bytes)}{_on_host(found)}, "
            f"{format_seconds(found.step_time_s)} a step"
        )

    def document(self) -> dict[str, Any]:
        """For `--json`: the change, and what it comes to."""
        found = self.best.estimate
        return {
            "change": self.change.what,
            "option": self.change.option or None,
            "summary": found.layout.summary,
            "step_time_s": found.step_time_s,
            "peak_memory_bytes": found.peak_memory_bytes,
        }


def diagnose(problem: Problem, limits: Limits | None = None) -> Infeasible:
    """What to say where no layout of *problem* is legal, or none fits; of changes as
    many as there is time to try."""
    clock = Clock(limits=limits or Limits())
    unlike = only_unlike(problem)
    problem = problem if unlike else everything_away(problem)
    if pins_cut(problem.pins):
        remedy = tried(without_layers(problem), clock)
        return _with_remedies(_NO_ROOM, [remedy] if remedy else [], late=clock.over)
    constraint = constraint_of(problem, clock)
    if unlike and constraint.startswith("divisibility"):
        return _named(constraint, f"fewer stages (--pp {problem.gpus} at most)")
    if constraint.startswith("size"):
        return _named(constraint, "a smaller batch (--global-batch)")
    if constraint.startswith(("memory", "host memory")):
        kinds = (
            _first(unpinned(problem), clock),
            _first(offloaded(problem), clock),
            _largest(smaller_batches(problem), clock),
            _largest(shorter_sequences(problem), clock),
            _first(more_gpus(problem), clock),
        )
        found = [one for one in kinds if one is not None]
        return _with_remedies(constraint, found, late=clock.over)
    legal = list(islice(dividing(problem), MOST_TRIED))
    remedy = _first(legal, clock)
    if remedy is None and legal and not clock.over:
        return _named(constraint, f"{legal[0]}, which divides but does not fit")
    return _with_remedies(constraint, [remedy] if remedy else [], late=clock.over)


def diagnose_search(
    problem: Problem, solution: Solution, limits: Limits | None = None
) -> Infeasible:
    """The same where a search found nothing: a baseline looks at few layouts."""
    if solution.complete:
        return diagnose(problem, limits)
    problem = everything_away(problem)
    other = Change(what="--search branch-and-bound", option="", problem=problem)
    found = tried(other, Clock(limits=limits or Limits()))
    if found is None:
        return diagnose(problem, limits)
    seen = solution.counters.considered
    looked_at = f"{seen:,} layouts, none of which fits" if seen else "no layout at all"
    return _with_remedies(
        f"search: {solution.search} looks at {looked_at}; others keep the same pins",
        [found],
    )


def tried(change: Change, clock: Clock | None = None) -> Remedy | None:
    """What a cheap search finds once the question is changed, in time; or None."""
    clock = clock or Clock(limits=Limits())
    limits = replace(clock.shared, runners_up=0, watch=None)
    try:
        clock.require()
        if only_unlike(change.problem):
            return _tried_of_any_mesh(change, clock)
        if too_large(change.problem):
            return None
        cheap = _cheap(change.problem)
        best = first_fit(cheap, CHEAP.solve(cheap, limits), clock).best
    except InvalidQuestion:  # a space too large, pins that now contradict each other
        return None
    except OutOfTime:
        return None
    if best is None:
        return None
    return Remedy(change=change, best=_with_more_at_once(change.problem, best, clock))


def _tried_of_any_mesh(change: Change, clock: Clock) -> Remedy | None:
    """Stages of any mesh that fit, a sequence at a time unless that is pinned."""
    problem = change.problem
    pins, batch = problem.pins, problem.job.global_batch
    if pins.micro_batch is None and pins.micro_batches is None:
        problem = replace(problem, pins=replace(pins, micro_batches=batch))
    best = any_fits(problem, clock)
    return None if best is None else Remedy(change=change, best=best)


def _with_more_at_once(problem: Problem, best: Candidate, clock: Clock) -> Candidate:
    """*best* with larger micro-batches while they fit and are faster, if not pinned."""
    if (problem.pins.micro_batch, problem.pins.micro_batches) != (None, None):
        return best
    if clock.over:
        return best
    for wider in _twice_at_once(problem, best.choice):
        try:
            found = problem.simulate(wider)
        except MeshwrightError:  # a size that does not divide the batch
            continue
        faster = found.estimate.step_time_s < best.estimate.step_time_s
        if faster and problem.fits(found):
            return _with_more_at_once(problem, found, clock)
    return best


def _twice_at_once(problem: Problem, choice: Uniform) -> Iterator[Uniform]:
    """Twice the micro-batch: as it is, and with everything made again for its room."""
    wider = replace(choice, micro_batch=2 * choice.micro_batch)
    yield wider
    if problem.pins.recompute is None and choice.recompute != "full":
        yield replace(wider, recompute="full")


def _first(changes: Iterable[Change], clock: Clock) -> Remedy | None:
    """The first of a few changes that gives a layout."""
    several = takewhile(lambda _: not clock.over, islice(changes, MOST_TRIED))
    remedies = (tried(one, clock) for one in several)
    return next((one for one in remedies if one is not None), None)


def _largest(changes: Iterable[Change], clock: Clock) -> Remedy | None:
    """The largest of ascending *changes* with which a layout fits, by bisection."""
    legal = [one for one in changes if not clock.over and _divides(one.problem)]
    found: dict[int, Remedy] = {}

    def fits(number: int) -> bool:
        remedy = None if clock.over else tried(legal[number - 1], clock)
        if remedy is not None:
            found[number] = remedy
        return remedy is not None

    return found.get(last_true(fits, 1, len(legal))) if legal else None


def _divides(problem: Problem) -> bool:
    """Whether some degrees split the model and the batch, if they have to."""
    return only_unlike(problem) or bool(length(Space(problem=problem).degrees))


def _cheap(problem: Problem) -> Problem:
    """*problem* among the layouts that need little memory and are bounded quickly."""
    pins = problem.pins
    if pins.micro_batch is None and pins.micro_batches is None:
        pins = replace(pins, micro_batch=1)
    if pins.schedule is None and pins.virtual_stages is None:
        pins = replace(pins, schedule="1f1b")
    return replace(problem, pins=pins, objective=Objective.THROUGHPUT)


def _on_host(found: Estimate) -> str:
    """What is offloaded, where anything is."""
    return "" if found.away is None else f" (and {found.away.words})"


def constraint_of(problem: Problem, clock: Clock | None = None) -> str:
    """What keeps *problem* from having a layout, in words that start with its kind:
    divisibility, size, support, memory or host memory; how much the least of them needs
    only if there is time to look."""
    pp, gpus = problem.pins.pp or 1, problem.gpus
    if only_unlike(problem) and pp > gpus:
        return f"divisibility: {pp} stages (--pp) on {gpus} GPUs, one GPU each at least"
    if is_unlike(problem):
        return (
            f"memory: no stages of {problem.job.model}, each inside one of the "
            f"{len(problem.machine.cluster.islands)} heterogeneous islands, fit on "
            f"{problem.gpus} GPUs"
        )
    if only_unlike(problem):
        return (
            f"memory: no {problem.pins.pp} stages of {problem.job.model}, of any mesh, "
            f"fit on {problem.gpus} GPUs"
        )
    problem = everything_away(problem)
    if length(Space(problem=problem).trunks):
        return _too_little_memory(problem, clock or Clock(limits=Limits()))
    job = problem.job
    if length(Space(problem=problem.unlimited()).trunks):
        return _not_executed(problem)
    if length(Space(problem=problem).degrees):
        return (
            f"size: a batch of {job.global_batch} on {problem.gpus} GPUs takes more "
            f"than {MOST_PASSES:,} passes a step in every layout"
        )
    return (
        f"divisibility: {job.model} ({job.graph.body} layers), sequences of "
        f"{job.seq_len} and a batch of {job.global_batch} do not split over "
        f"{problem.gpus} GPUs"
    )


def _not_executed(problem: Problem) -> str:
    job = problem.job
    alone = Uniform(
        precision=problem.precision,
        gradient_format=problem.gradient_format,
        flash_attention=problem.flash_attention,
        offload=problem.offload,
    )
    found = "; ".join(refusals(alone, job) if problem.executable else [])
    who = f"{problem.runs_on} runs" if problem.runs_on else "`execute` supports"
    return (
        f"support: {job.model} has layouts on {problem.gpus} GPUs, none of which {who} "
        f"({found or 'no combination of degrees is left'})"
    )


def _too_little_memory(problem: Problem, clock: Clock) -> str:
    device, offered = problem.machine.device, format_bytes(problem.memory_limit_bytes)
    try:
        found = leanest(problem.with_hosts_of_any_size(), clock)
    except OutOfTime:
        found = None
    if found is None:  # time was over before any was found
        return (
            f"memory: no layout of {problem.job.model} fits on {problem.gpus} GPUs, "
            f"{device.name} offers {offered}{_alone(problem)}"
        )
    smallest = found.candidate
    if smallest.estimate.peak_secured_bytes <= problem.memory_limit_bytes:
        return _too_little_on_hosts(problem, smallest)
    peak = format_bytes(smallest.estimate.peak_needed_bytes)
    which = "of any layout" if found.proven else "that was found"
    return (
        f"memory: the smallest peak {which} is {peak} "
        f"({choice_words(smallest.choice, problem.job.global_batch)}: "
        f"{fullest(smallest)}), {device.name} offers {offered}"
        f"{_margin(problem, smallest)}{_alone(problem)}{cuts_do_not_fit(problem)}"
    )


def _too_little_on_hosts(problem: Problem, found: Candidate) -> str:
    away = found.estimate.away
    assert away is not None, "nothing else is limited"
    return (
        f"host memory: {choice_words(found.choice, problem.job.global_batch)} fits on "
        f"the devices, and needs {away.words}, which has "
        f"{format_bytes(problem.host_limit_bytes)}"
    )


def _alone(problem: Problem) -> str:
    """What the states or the largest weight need by themselves, where that is too much
    already."""
    alone, widest = states_bytes(problem), widest_bytes(problem)
    if max(alone, widest) <= problem.memory_limit_bytes:
        return ""
    if widest > alone:
        return f"; its largest weight alone is {format_bytes(widest)} a device"
    return (
        f"; parameters, gradients and optimizer states alone are "
        f"{format_bytes(alone)} per device with any sharding"
    )


def _margin(problem: Problem, found: Candidate) -> str:
    """What has to be left free where more than even odds are asked for."""
    estimate = found.estimate
    free = estimate.peak_secured_bytes - estimate.peak_needed_bytes
    if not free > 0:
        return ""
    return (
        f", of which {format_bytes(free)} must stay free for it to fit with "
        f"probability {problem.probability:g}"
    )


def _with_remedies(
    constraint: str, found: Sequence[Remedy], *, late: bool = False
) -> Infeasible:
    """The nearest change first; the others beside it. Where it is *late* others may be
    nearer."""
    words = [one.words for one in found]
    hint = f"nearest that works: {'; or '.join(words)}" if words else _NOTHING
    if late:
        hint = f"{hint}; {_LATE}" if words else _LATE
    return Infeasible(
        f"no layout: {constraint}; {hint}",
        constraint=constraint,
        nearest=next(iter(words), None),
        changes=[one.document() for one in found],
        complete=not late,
    )


def _named(constraint: str, nearest: str) -> Infeasible:
    """A change that is no layout's yet."""
    said = f"no layout: {constraint}; nearest: {nearest}"
    return Infeasible(said, constraint=constraint, nearest=nearest)
