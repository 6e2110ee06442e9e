"""Prices of a table of runs, one process, equal questions priced once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.estimate import Estimate, estimate
from costmodel.question import Question
from costmodel.runs.cells import Cells
from costmodel.runs.question import Questions
from costmodel.runs.run import Run
from costmodel.uniform import spell_out
from profiles.errors import MeshwrightError


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What is kept of an estimate: its document, and bytes by how runs count them."""

    document: Mapping[str, Any]
    step_time_s: float
    fits: bool
    peak_bytes: Mapping[str, float]  # device, reserved, allocated


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A run and its price, or why it has none."""

    run: Run
    price: Price | None = None
    error: str | None = None


def price_runs(runs: Iterable[Run]) -> Iterator[Priced]:
    """Price each run in turn; an error of one stops no other."""
    questions = Questions()
    known: dict[object, Price] = {}
    for run in runs:
        if run.fault is not None:
            yield Priced(run=run, error=run.fault)
            continue
        try:
            question = questions.question(Cells(text=run.asked))
            price = _price(question, known)
        except MeshwrightError as error:
            yield Priced(run=run, error=str(error))
        else:
            yield Priced(run=run, price=price)


def _price(question: Question, known: dict[object, Price]) -> Price:
    """The price of an equal question asked before, or a new one."""
    key = (question.job, question.choice, id(question.machine))
    if key not in known:
        known[key] = _summed_up(_estimate(question))
    document = {
        **known[key].document,
        "assumed": question.assumed,
        "warnings": list(question.warnings),
    }
    return replace(known[key], document=document)


def _estimate(question: Question) -> Estimate:
    job, on = question.job, question.machine
    layout = spell_out(question.choice, job.graph, job.global_batch)
    return estimate(job, on.cluster, layout, on=on)


def _summed_up(found: Estimate) -> Price:
    return Price(
        document=found.document(),
        step_time_s=found.step_time_s,
        fits=found.fits,
        peak_bytes={
            "device": found.peak_memory_bytes,
            "reserved": found.peak_reserved_bytes,
            "allocated": found.peak_allocated_bytes,
        },
    )
