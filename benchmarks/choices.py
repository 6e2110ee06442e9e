"""Of layouts that somebody swept and measured, which would the planner have taken?

    MESHWRIGHT_DATA=<folder> python benchmarks/choices.py [FILE.csv]

FILE.csv is runs.csv of the folder unless given. A group is the runs alike in family,
GPUs, batch, kernels, precision and framework, four measured layouts or more: they
differ in layout only. The planner takes the layout that it prices fastest of those that
fit with its probability, or of those within a percent that it cannot tell from it the
one whose bad case is best (`planner.analysis.robust_choice`), and is held to the
measured steps:

    best      it is the fastest measured one, or as fast within what repeats differ by
    within    it loses at most 2 % to that
    top 3     at most two measured layouts are faster
    by time   the loss of the fastest estimate, if nothing is left out for its memory

Layouts that were measured to be out of memory stand among the choices; to take one is
to lose everything. Runs of one layout are one, of their median.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.published_runs import asked_runs
from benchmarks.recommended import recommended
from costmodel.layout.strategy import spell_out
from costmodel.report.tables import layout_words
from costmodel.runs.comparison import Compared
from costmodel.runs.table import read_runs
from costmodel.runs.validate import GROUP, SMALLEST_GROUP, compare
from costmodel.simulation.question import Question
from planner.problem.problem import PROBABILITY

REPEATS = 0.003  # how far apart measurements of one layout are, at the quietest source
WITHIN = 0.02
TOP = 3
WIDTH = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A layout that was measured: what it was priced at, and what it took; an infinite
    measurement is out of memory."""

    words: str
    estimated_s: float
    measured_s: float
    fits: bool
    question: Question | None = None  # which asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the planner takes of one group."""

    source: str
    named: str
    swept: tuple[Swept, ...]
    taken: Swept

    @property
    def best(self) -> Swept:
        return min(self.swept, key=lambda one: one.measured_s)

    @property
    def loss(self) -> float:
        """How much longer the choice took than the best, as a fraction."""
        return self.taken.measured_s / self.best.measured_s - 1

    @property
    def loss_by_time(self) -> float:
        """The same if memory is not asked for, among layouts that ran."""
        ran = [one for one in self.swept if isfinite(one.measured_s)]
        taken = min(ran, key=lambda one: one.estimated_s)
        return taken.measured_s / self.best.measured_s - 1

    @property
    def faster(self) -> int:
        """How many layouts were measured faster than the choice."""
        return sum(one.measured_s < self.taken.measured_s for one in self.swept)

    @property
    def is_best(self) -> bool:
        return self.loss <= REPEATS

    @property
    def is_near(self) -> bool:
        return self.loss <= WITHIN

    @property
    def is_high(self) -> bool:
        return self.faster < TOP


def choices(compared: Iterable[Compared]) -> list[Choice]:
    """One choice for each group of layouts, in the order of the table."""
    groups: dict[tuple[str, ...], list[Compared]] = defaultdict(list)
    for item in compared:
        if item.counts and (item.times or item.measured.get("oom") == "y"):
            alike = tuple(item.run.cell(name) for name in ("source", *GROUP))
            groups[alike].append(item)
    found = [(alike, _swept(items)) for alike, items in groups.items()]
    return [
        _choice(alike, swept) for alike, swept in found if _ran(swept) >= SMALLEST_GROUP
    ]


def _choice(alike: tuple[str, ...], swept: tuple[Swept, ...]) -> Choice:
    fastest = by_estimate(swept)
    asked = [one.question for one in fastest if one.question is not None]
    taken = fastest[recommended(asked)]
    return Choice(source=alike[0], named=_named(alike), swept=swept, taken=taken)


def by_estimate(swept: Iterable[Swept]) -> list[Swept]:
    """Those that fit, or all where none is said to; the fastest estimate first."""
    swept = list(swept)
    fitting = [one for one in swept if one.fits]
    return sorted(fitting or swept, key=lambda one: one.estimated_s)


def _named(alike: Sequence[str]) -> str:
    _, family, gpus, batch, *_ = alike
    _, *words = family.split("|")
    return ", ".join([*(words or [family]), f"{gpus} GPUs", f"batch {batch}"])


def _ran(swept: Iterable[Swept]) -> int:
    return sum(isfinite(one.measured_s) for one in swept)


def _swept(items: Iterable[Compared]) -> tuple[Swept, ...]:
    """The layouts of a group, runs of the same one together."""
    runs: dict[Any, list[Compared]] = defaultdict(list)
    for item in items:
        assert item.priced.question is not None, "it counts, so it is priced"
        runs[item.priced.question.choice].append(item)
    return tuple(map(_one, runs.values()))


def _one(items: Sequence[Compared]) -> Swept:
    first = items[0].priced
    assert first.price is not None
    assert first.question is not None
    took = [item.times[1] if item.times else inf for item in items]
    job = first.question.job
    layout = spell_out(first.question.choice, job.graph, job.global_batch)
    return Swept(
        words=layout_words(layout),
        estimated_s=first.price.step_time_s,
        measured_s=median(took),
        fits=first.price.probability_fits >= PROBABILITY,
        question=first.question,
    )


def share(found: Sequence[Choice], name: str) -> float:
    """Of how many choices a property holds, as a fraction."""
    return fmean(bool(getattr(one, name)) for one in found)


def table(found: Sequence[Choice]) -> list[str]:
    """One line a source, and one of all."""
    by_source: dict[str, list[Choice]] = defaultdict(list)
    for one in found:
        by_source[one.source].append(one)
    head = f"{'source':41}{'groups':>7}{'best':>6}{'≤ 2 %':>7}{'top 3':>7}"
    lines = [f"{head}{'loss':>7}{'by time':>9}{'oom':>5}"]
    lines += [_line(source, part) for source, part in sorted(by_source.items())]
    return [*lines, _line("all", found)]


def _line(name: str, found: Sequence[Choice]) -> str:
    ran = [one.loss for one in found if isfinite(one.loss)]
    loss = f"{fmean(ran):.1%}" if ran else ""
    by_time = fmean(one.loss_by_time for one in found)
    properties = zip(("is_best", "is_near", "is_high"), (6, 7, 7), strict=True)
    shares = [f"{share(found, each):{width}.0%}" for each, width in properties]
    return (
        f"{name[:40]:41}{len(found):7}{''.join(shares)}"
        f"{loss:>7}{by_time:9.1%}{len(found) - len(ran):5}"
    )


def losers(found: Sequence[Choice]) -> list[str]:
    """Of each source the groups whose choice loses most, where that is over 2 %."""
    lost = sorted((one for one in found if not one.is_near), key=lambda one: -one.loss)
    worst: dict[str, Choice] = {}
    for one in lost:
        worst.setdefault(one.source, one)
    return [_lost(one) for one in worst.values()]


def _lost(one: Choice) -> str:
    loss = f"{one.loss:.1%}" if isfinite(one.loss) else "out of memory"
    kept_out = "" if one.best.fits else " (said not to fit)"
    words = f"{loss}, {one.named}: {one.taken.words}; best {one.best.words}{kept_out}"
    return fill(words, WIDTH, subsequent_indent="    ")


def main(arguments: Sequence[str]) -> int:
    path = asked_runs(arguments)
    if path is None:
        return 2
    found = choices(compare(read_runs(path)))
    print("\n".join(table(found)))
    print("\nloses more than 2 %, the worst of each source:")
    print("\n".join(losers(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
