"""Prices of a table of runs, one process, equal questions priced once.

    rows    → what each asks, its layout spelled out; hangs on no rate   → `ask_runs`
    asked   → its price on its machine, or on another one's rates        → `price_asked`

Runs are priced some thousand at a time, so that what they share is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from costmodel.layout import Layout, Uniform, spell_out
from costmodel.machine import Machine
from costmodel.runs.cells import Cells
from costmodel.runs.question import Questions
from costmodel.runs.table import Run
from costmodel.simulation import Answer, Question, answers
from costmodel.stages import Memory
from profiles.errors import MeshwrightError
from profiles.models import Job

TOGETHER: Final = 4096  # runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What is kept of an estimate; bytes by how runs count them."""

    write: Callable[[], Mapping[str, Any]] = field(compare=False)
    step_time_s: float
    interval_s: tuple[float, float]  # p10 and p90 of the step
    fits: bool
    probability_fits: float
    spread_bytes: float  # standard deviation of the largest peak
    peak_bytes: Mapping[str, float]  # device, reserved, allocated

    @property
    def document(self) -> Mapping[str, Any]:
        """What `simulate --json` prints, written when it is asked for."""
        return self.write()


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A run and its price, or why it has none."""

    run: Run
    question: Question | None = None
    price: Price | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A run and the question that it asks; equal ones share a layout."""

    run: Run
    question: Question | None = None
    layout: Layout | None = None
    error: str | None = None


@dataclass(kw_only=True)
class Asking:
    """Turns runs into questions with their layouts; equal ones are made once."""

    _questions: Questions = field(default_factory=Questions)
    _layouts: dict[tuple[Job, Uniform], Layout] = field(default_factory=dict)

    def ask(self, run: Run) -> Asked:
        """The question of *run*, or why it asks none."""
        if run.fault is not None:
            return Asked(run=run, error=run.fault)
        try:
            question = self._questions.question(Cells(text=run.asked))
            layout = self._layout(question.job, question.choice)
        except MeshwrightError as error:
            return Asked(run=run, error=str(error))
        return Asked(run=run, question=question, layout=layout)

    def _layout(self, job: Job, choice: Uniform) -> Layout:
        key = (job, choice)
        if key not in self._layouts:
            self._layouts[key] = spell_out(choice, job.graph, job.global_batch)
        return self._layouts[key]


def ask_runs(runs: Iterable[Run]) -> list[Asked]:
    """What each run asks: all of a price that hangs on no rate."""
    asking = Asking()
    return [asking.ask(run) for run in runs]


def price_runs(runs: Iterable[Run]) -> Iterator[Priced]:
    """Price each run in turn; an error of one stops no other."""
    left = iter(runs)
    while some := list(islice(left, TOGETHER)):
        yield from price_asked(ask_runs(some))


def price_asked(
    asked: Sequence[Asked], on: Callable[[Machine], Machine] | None = None
) -> Iterator[Priced]:
    """Price each question in turn, each machine put in place by *on* if given."""
    machines: dict[int, Machine] = {}
    questions: dict[tuple[int, int], tuple[Job, Layout, Machine]] = {}
    keys: list[tuple[int, int] | None] = []
    for item in asked:
        if item.question is None or item.layout is None:
            keys.append(None)
            continue
        own = item.question.machine
        if id(own) not in machines:
            machines[id(own)] = own if on is None else on(own)
        key = (id(item.layout), id(own))
        questions[key] = (item.question.job, item.layout, machines[id(own)])
        keys.append(key)
    found = dict(zip(questions, map(_kept, answers(questions.values())), strict=True))
    for item, known in zip(asked, keys, strict=True):
        yield _priced(item, found[known] if known else item.error or "")


def _kept(found: Answer | MeshwrightError) -> Price | str:
    if isinstance(found, MeshwrightError):
        return str(found)
    return Price(
        write=found.document,
        step_time_s=found.step_time_s,
        interval_s=found.interval_s,
        fits=found.fits,
        probability_fits=found.probability_fits,
        spread_bytes=float(max(found.memory, key=_total).spread),
        peak_bytes={
            "device": found.peak_memory_bytes,
            "reserved": found.peak_reserved_bytes,
            "allocated": found.peak_allocated_bytes,
        },
    )


def _priced(asked: Asked, found: Price | str) -> Priced:
    if isinstance(found, str) or asked.question is None:
        return Priced(run=asked.run, error=str(found))
    price = _own(found, asked.question)
    return Priced(run=asked.run, question=asked.question, price=price)


def _own(found: Price, question: Question) -> Price:
    """*found*, priced for an equal question, with what this one took for granted."""

    def write() -> Mapping[str, Any]:
        return {
            **found.document,
            "assumed": question.assumed,
            "warnings": list(question.warnings),
        }

    return replace(found, write=write)


def _total(memory: Memory) -> float:
    return float(memory.total)
