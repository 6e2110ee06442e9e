"""`Plan`: a solution with the problem that it solves, as a document and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from costmodel.layout import Layout
from costmodel.simulation import Estimate
from planner.problem import Problem, Solution, candidate_words
from profiles.notebook import html_table
from profiles.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Solution):
    """What `plan` returns; `assumed` is what nobody said, by name."""

    problem: Problem
    assumed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, found: Solution, assumed: Mapping[str, Any]) -> Plan:
        """*found* as the plan of *problem*."""
        values = {item.name: getattr(found, item.name) for item in fields(Solution)}
        return cls(problem=problem, assumed=assumed, **values)

    @property
    def layout(self) -> Layout | None:
        """The best layout; None where none fits."""
        return None if self.best is None else self.best.estimate.layout

    @property
    def estimate(self) -> Estimate | None:
        """What the best layout costs; None where none fits."""
        return None if self.best is None else self.best.estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values of JSON: what `plan --json` prints; where nothing fits, its
        `layout` and `estimate` are None."""
        from planner.report import answer_document, nothing_document, premise_document

        problem = self.problem
        if self.best is None:
            answer = nothing_document(self)
        else:
            answer = answer_document(problem, self)
        return {
            **premise_document(problem, problem.machine.cluster.name),
            **answer,
            "assumed": dict(self.assumed),
            "warnings": list(problem.machine.remarks()),
        }

    def _repr_html_(self) -> str:
        """The best layout and the runners-up, a row each, for a notebook."""
        problem = self.problem
        title = (
            f"{problem.job.model} on {problem.gpus} × {problem.machine.device.name}: "
            f"{self.status.value}, gap {self.gap:.2%}"
        )
        found = () if self.best is None else (self.best, *self.runners_up)
        return html_table(
            title,
            [
                (
                    candidate_words(one, problem.job.global_batch),
                    format_seconds(one.estimate.step_time_s),
                    format_bytes(one.estimate.peak_memory_bytes),
                    f"{one.estimate.mfu:.1%}",
                )
                for one in found
            ],
            heads=("layout", "step time", "peak memory", "MFU"),
        )
