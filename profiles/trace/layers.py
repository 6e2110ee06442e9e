"""A trace cut into layers: where equal work lies between cuts that little crosses.

Members of the module's lists (the blocks of a transformer, the stages of a U-Net) are
layers where they have a share of the work; between two of them the cut is where the
fewest elements cross. A module without such lists is cut by Alpa's dynamic programme
(OSDI 2022, section 5.2): least communication, no layer with more than its share of the
work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Final

from profiles.trace.steps import Step, Trace

SHARE: Final = 0.25  # of the largest member's work: what a layer has at least
LAYERS: Final = 8  # of a module without lists, at most
SPREAD: Final = (1.25, 1.5, 2.0, 4.0, float("inf"))  # of a layer's work over its share
CUTS: Final = 400  # places that the dynamic programme looks at, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The numbered layers of a trace and its ends, each a range of steps; `paths` are
    the modules that layers are, where they are one ("" else)."""

    beginning: range
    body: tuple[range, ...]
    ending: range
    paths: tuple[str, ...]


def layers_of(trace: Trace) -> Layers:
    """The layers of *trace*."""
    crossing = crossings(trace)
    runs = _runs(trace)
    largest = max((_work(trace, run) for path, run in runs if path), default=0.0)
    heavy = [
        (path, run)
        for path, run in runs
        if path and _work(trace, run) >= SHARE * largest
    ]
    if largest == 0 or len(heavy) < 2:
        return _programmed(trace, crossing)
    heavy = _with_free(trace, heavy, SHARE * largest)
    members = [run for _, run in heavy]
    inner = [_cut(crossing, one.stop, two.start) for one, two in pairwise(members)]
    edges = [members[0].start, *inner, _end(trace, members, inner)]
    return Layers(
        beginning=range(edges[0]),
        body=tuple(range(a, b) for a, b in pairwise(edges)),
        ending=range(edges[-1], len(trace.steps)),
        paths=tuple(path for path, _ in heavy),
    )


def _end(trace: Trace, members: Sequence[range], inner: Sequence[int]) -> int:
    """Where the last layer ends: with what follows its member as it follows the one
    before (the sum with a residual, say)."""
    last = members[-1].stop
    follow = [one.function for one in trace.steps[members[-2].stop : inner[-1]]]
    here = [one.function for one in trace.steps[last : last + len(follow)]]
    return last + len(follow) if here == follow else last


def crossings(trace: Trace) -> list[float]:
    """Elements of a sample that are made before each step and read at it or after it,
    as far as gradients pass them."""
    last: dict[str, int] = {}
    for number, step in enumerate(trace.steps):
        for name in step.reads:
            last[name] = number
    change = [0.0] * (len(trace.steps) + 1)
    for number, step in enumerate(trace.steps):
        if step.trains and last.get(step.name, 0) > number:
            change[number + 1] += step.elements.one
            change[last[step.name] + 1] -= step.elements.one
    return list(accumulate(change))


def _cut(crossing: Sequence[float], first: int, last: int) -> int:
    """Where the fewest elements cross, of the places from *first* to *last*; the last
    such."""
    return min(range(last, first - 1, -1), key=crossing.__getitem__)


def _work(trace: Trace, run: range) -> float:
    """FLOPs of forward and backward; of what has none, elements moved."""
    return sum(weight(trace.steps[one]) for one in run)


def weight(step: Step) -> float:
    """Work of a step, in FLOPs; an element moved is as much as one."""
    return step.flops.one + step.backward_flops.one + step.moved.one


def _runs(trace: Trace) -> list[tuple[str, range]]:
    """The steps in turn, by the list member that they are of ("": of none)."""
    members = set(_members(trace))
    known: dict[str, str] = {}

    def member(path: str) -> str:
        if path not in known:
            parts = path.split(".")
            prefixes = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
            known[path] = next((one for one in prefixes if one in members), "")
        return known[path]

    found, start = [], 0
    for path, steps in groupby(trace.steps, key=lambda step: member(step.module)):
        stop = start + len(list(steps))
        found.append((path, range(start, stop)))
        start = stop
    return _joined(found)


def _joined(runs: list[tuple[str, range]]) -> list[tuple[str, range]]:
    """Runs of one member with little between them are one."""
    found: list[tuple[str, range]] = []
    for path, run in runs:
        again = len(found) >= 2 and path and found[-2][0] == path and not found[-1][0]
        if again and len(found[-1][1]) <= len(run):
            found[-2:] = [(path, range(found[-2][1].start, run.stop))]
        else:
            found.append((path, run))
    return found


def _members(trace: Trace) -> Iterator[str]:
    """The members of the outermost lists; of a member that has most of the work, and
    lists inside, their members instead."""
    work: dict[str, float] = {}
    for step in trace.steps:
        parts = step.module.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            work[path] = work.get(path, 0.0) + weight(step)
    half = sum(weight(step) for step in trace.steps) / 2
    lists = [(path, members) for path, members in trace.lists if members]

    def inside(path: str) -> list[tuple[str, tuple[str, ...]]]:
        return [one for one in lists if one[0].startswith(f"{path}.") or one[0] == path]

    def of(some: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[str]:
        outer = [
            (path, members)
            for path, members in some
            if not any(_within(path, one) for other, them in some for one in them)
        ]
        for _, members in outer:
            for one in members:
                deeper = inside(one)
                if deeper and work.get(one, 0.0) > half:
                    yield from of(deeper)
                else:
                    yield one

    yield from of(lists)


def _within(path: str, member: str) -> bool:
    return path == member or path.startswith(f"{member}.")


def _with_free(
    trace: Trace, heavy: list[tuple[str, range]], least: float
) -> list[tuple[str, range]]:
    """With what lies between two members and has as much work as a layer; what lies
    before the first and after the last is the ends'."""
    found = heavy[:1]
    for path, run in heavy[1:]:
        between = range(found[-1][1].stop, run.start)
        if _work(trace, between) >= least:
            found.append(("", between))
        found.append((path, run))
    return found


def _programmed(trace: Trace, crossing: Sequence[float]) -> Layers:
    """Alpa's programme over the whole trace; the ends are its first and last steps."""
    count = len(trace.steps)
    work = list(accumulate((weight(one) for one in trace.steps), initial=0.0))
    heavy = [n for n, one in enumerate(trace.steps) if one.parameters]
    places = sorted({_cut(crossing, a + 1, b) for a, b in pairwise(heavy)})
    places = places[:: -(-len(places) // CUTS)] if places else []
    ending = places[-1] if len(places) > 1 else count
    places = [one for one in places if one < ending]
    layers = max(min(LAYERS, len(places) + 1), 1)
    for spread in SPREAD:
        cuts = _least_cut([0, *places, ending], work, crossing, layers, spread)
        if cuts is not None:
            break
    assert cuts is not None, "any work is below no limit"
    body = tuple(range(a, b) for a, b in pairwise(cuts))
    return Layers(
        beginning=range(0),
        body=body,
        ending=range(ending, count),
        paths=("",) * len(body),
    )


def _least_cut(
    places: Sequence[int],
    work: Sequence[float],
    crossing: Sequence[float],
    layers: int,
    spread: float,
) -> list[int] | None:
    """The cuts of *places* into so many layers that the fewest elements cross, where
    none has more than *spread* times its share of the work."""
    most = spread * (work[places[-1]] - work[places[0]]) / layers
    best: Mapping[int, tuple[float, list[int]]] = {0: (0.0, [places[0]])}
    for _ in range(layers):
        following: dict[int, tuple[float, list[int]]] = {}
        for start, (cost, cuts) in best.items():
            for stop in range(start + 1, len(places)):
                if work[places[stop]] - work[places[start]] > most:
                    break
                inner = stop < len(places) - 1
                total = cost + (crossing[places[stop]] if inner else 0.0)
                if stop not in following or total < following[stop][0]:
                    following[stop] = (total, [*cuts, places[stop]])
        best = following
    found = best.get(len(places) - 1)
    return found[1] if found else None
