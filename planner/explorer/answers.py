"""What the explorer answers: one layout at once, a plan within seconds."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any, Final

from costmodel.layout import Uniform
from costmodel.options import RunOptions
from costmodel.pages import (
    Section,
    chart,
    estimate_sections,
    estimate_series,
    facts,
    sentence,
)
from costmodel.simulation import Estimate, Pricing, origin_of, priced, resolve
from costmodel.training_run import training, training_rows
from planner.api import improved, solve
from planner.explorer.state import MOST_PASSES, Catalogue, State, state_of
from planner.problem import Asked, Goal, Problem, Solution
from planner.report import alternatives_section, front, front_section
from planner.search import Limits, search_called
from profiles.errors import Infeasible, InvalidSpec
from profiles.units import GiB

MOST_ACTIONS: Final = 6000  # in one answer; of more, neighbours are joined
MOST_KEPT: Final = 256  # answers
PLAN_S: Final = 10.0
RUNNERS_UP: Final = 8
Document = dict[str, Any]
PINNED: Final = ("tp", "pp", "cp", "ep", "micro_batch", "virtual_stages", "zero")


@dataclass(kw_only=True)
class Answers:
    """Answers to what pages ask, the last of them kept."""

    catalogue: Catalogue
    _kept: OrderedDict[str, Document] = field(default_factory=OrderedDict)

    def simulated(self, asked: object) -> Document:
        """The price of the layout that is asked about; raises as `state_of` and
        `simulate`."""
        key = json.dumps(asked, sort_keys=True)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        found = _simulated(state_of(asked, self.catalogue))
        self._kept[key] = found
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    def planned(self, asked: object) -> Document:
        """The best layout for the job, cluster and GPUs that are asked about, as pins
        for the page; raises Infeasible, and OutOfTime after `PLAN_S`."""
        return _planned(state_of(asked, self.catalogue))


def skeleton() -> list[Section]:
    """The sections of an answer before there is one, with the places of charts."""
    charts = {"timeline": "Pipeline timeline", "memory": "Memory over time"}
    charts |= {
        "breakdown": "Time breakdown",
        "pareto": "Last plan: throughput, memory and cost",
    }
    plain = {"figures": "Figures", "run": "Training run", "layout": "Layout"}
    last = {"sources": "Sources and uncertainty", "assumed": "Assumed"}
    last |= {"warnings": "Warnings"}
    return [
        *(Section(name=name, title=title, html="") for name, title in plain.items()),
        *(
            Section(
                name="front" if name == "pareto" else name,
                title=title,
                html=chart(name, title, "", zooms=name == "timeline"),
            )
            for name, title in charts.items()
        ),
        Section(name="alternatives", title="Last plan: alternatives", html=""),
        *(Section(name=name, title=title, html="") for name, title in last.items()),
    ]


def _simulated(state: State) -> Document:
    question = resolve(state.model, state.cluster, state.job, state.pins)
    choice, batch = question.choice, question.job.global_batch
    passes = 2 * choice.pp * choice.virtual_stages * choice.micro_batches(batch)
    if passes > MOST_PASSES:
        raise InvalidSpec(
            f"{passes:,} passes are more than the {MOST_PASSES:,} that the explorer "
            "simulates at once; use a larger micro-batch, or the command simulate"
        )
    found = priced(question)
    sections = estimate_sections(found, state.cluster)
    sections.append(_run(state, found))
    name = state.cluster.name if state.changed else state.where
    pricing = Pricing(
        estimate=found,
        on=question.machine,
        where=name,
        origin=origin_of(state.job, state.pins, None, found),
        profile=None,
    )
    return {
        "lead": sentence(found),
        "fits": found.fits,
        "sections": {one.name: one.html for one in sections},
        "series": estimate_series(found, MOST_ACTIONS),
        "estimate": _brief(found),
        "command": state.command,
        "exact": not state.changed,
        "layout": pricing.document(),
    }


def _brief(found: Estimate) -> Document:
    return {
        "step_time_s": found.step_time_s,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
        "peak_memory_bytes": found.peak_memory_bytes,
        "fits": found.fits,
    }


def _run(state: State, found: Estimate) -> Section:
    """Days, dollars and failures of a whole run."""
    if state.tokens is None:
        html = "<p>Choose tokens to see days, dollars and failures.</p>"
    else:
        html = facts(training_rows(training(found, RunOptions(tokens=state.tokens))))
    return Section(name="run", title="Training run", html=html)


def _planned(state: State) -> Document:
    asked = Asked(
        model=state.model,
        cluster=state.cluster,
        where=state.where,
        job=state.job,
        pins=_open(state),
        goal=Goal(),
    )
    problem = asked.pose().problem
    limits = Limits(time_limit_s=PLAN_S, runners_up=RUNNERS_UP).begun()
    first = solve(problem, search_called("branch-and-bound"), limits)
    if first.best is None:
        raise Infeasible(
            "no layout fits; choose more GPUs or another cluster",
            constraint="memory",
            nearest=None,
        )
    found = improved(problem, first, asked.pins, limits, RUNNERS_UP)
    return _plan_document(problem, found)


def _open(state: State) -> Any:
    """Nothing of the layout is pinned: all of it is searched."""
    return replace(
        state.pins, **dict.fromkeys((*PINNED, "dp", "schedule", "recompute"))
    )


def _plan_document(problem: Problem, found: Solution) -> Document:
    assert found.best is not None, "who has no layout says why instead"
    points = front(problem, found)
    capacity = min(found.best.estimate.capacities_bytes) / GiB
    sections = [front_section(points), alternatives_section(problem, found)]
    return {
        "pins": pins_of(found.best.choice),
        "gap": found.gap,
        "seconds": found.seconds,
        "global_batch": problem.job.global_batch,
        "estimate": _brief(found.best.estimate),
        "sections": {one.name: one.html for one in sections},
        "series": {"pareto": {"points": points, "capacity_gib": capacity}},
    }


def pins_of(choice: Uniform) -> Document:
    """The controls that stand for *choice*; what they cannot say is left out."""
    return {
        **{name: getattr(choice, name) for name in PINNED},
        "schedule": choice.schedule,
        "recompute": choice.recompute,
    }
