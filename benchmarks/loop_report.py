"""What a closed loop found: each layout predicted beside measured, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from benchmarks.intervals import ratio_interval
from costmodel.report.svg import STYLE, Dot, scatter
from costmodel.runs.validate import kendall_tau
from profiles.units import MB

NEAR: Final = 0.03  # a choice that loses less is as good as the best


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layout. `rounds_s` are the median seconds of a step, round by round, and
    peaks are by rank."""

    name: str
    predicted_s: float
    measured_s: float
    rounds_s: tuple[float, ...]
    predicted_bytes: tuple[float, ...]
    measured_bytes: tuple[float, ...]

    @property
    def time_error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error(self) -> float:
        """Of the rank that is missed by most, with its sign."""
        errors = [
            predicted / measured - 1
            for predicted, measured in zip(
                self.predicted_bytes, self.measured_bytes, strict=True
            )
        ]
        return max(errors, key=abs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All layouts of a model on so many ranks; `planned` is the recommended one."""

    model: str
    ranks: int
    planned: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        return f"{self.model}, {self.ranks} {'ranks' if self.ranks > 1 else 'rank'}"

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def summary(self) -> dict[str, Any]:
        """The figures of the table; errors are predicted over measured, less 1."""
        times = [abs(row.time_error) for row in self.rows]
        peaks = [abs(row.memory_error) for row in self.rows]
        return {
            "layouts": len(self.rows),
            "time_mean_error": fmean(times),
            "time_largest_error": max(times),
            "time_bias": fmean(row.time_error for row in self.rows),
            "kendall_tau": kendall_tau(
                [(row.predicted_s, row.measured_s) for row in self.rows]
            ),
            "memory_mean_error": fmean(peaks),
            "memory_largest_error": max(peaks),
            "choice": self.choice(),
        }

    def choice(self) -> dict[str, Any]:
        """The recommended layout against the one that was measured fastest.

        The fastest of so many is fast by luck too, so this errs against the plan.
        """
        plan = self.row(self.planned)
        best = min(self.rows, key=lambda row: row.measured_s)
        slower = plan.measured_s / best.measured_s - 1
        low, high = 1.0, 1.0
        if plan is not best and len(plan.rounds_s) > 1:
            low, high = ratio_interval(plan.rounds_s, best.rounds_s)
        return {
            "planned": plan.name,
            "best": best.name,
            "slower": slower,
            "slower_interval": [low - 1, high - 1],
            "is_best": plan is best,
            "is_near": slower <= NEAR,
            "distinguishable": low > 1,
        }

    def markdown(self) -> str:
        """Predicted beside measured, and the errors."""
        lines = [
            f"**{self.title}**",
            "",
            (
                "| layout | step predicted | measured | error | peak predicted | "
                "measured | error |"
            ),
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for row in sorted(self.rows, key=lambda row: row.measured_s):
            star = " (the plan)" if row.name == self.planned != "the plan" else ""
            lines.append(
                f"| {row.name}{star} | {row.predicted_s:.3f} s | {row.measured_s:.3f} "
                f"s | {row.time_error:+.1%} | {max(row.predicted_bytes) / MB:.1f} MB | "
                f"{max(row.measured_bytes) / MB:.1f} MB | {row.memory_error:+.1%} |"
            )
        return "\n".join([*lines, "", words(self.summary())])


def words(found: Mapping[str, Any]) -> str:
    """The summary of a table in a few lines."""
    tau, choice = found["kendall_tau"], found["choice"]
    low, high = choice["slower_interval"]
    best = (
        "and was measured fastest"
        if choice["is_best"]
        else f"{choice['slower']:.1%} slower than {choice['best']}, measured fastest "
        f"(95 %: {low:+.1%} to {high:+.1%}"
        f"{'' if choice['distinguishable'] else ', not distinguishable'})"
    )
    order = "no two layouts told apart" if tau is None else f"Kendall τ {tau:.2f}"
    return (
        f"{found['layouts']} layouts. Step time: mean error "
        f"{found['time_mean_error']:.1%}, largest {found['time_largest_error']:.1%}, "
        f"bias {found['time_bias']:+.1%}; {order}. Peak memory, of the rank missed by "
        f"most: mean {found['memory_mean_error']:.1%}, largest "
        f"{found['memory_largest_error']:.1%}. Recommended: {choice['planned']}, "
        f"{best}."
    )


def row_of(name: str, seen: Mapping[str, Any], predicted: Mapping[str, Any]) -> Row:
    """A row from the documents of a layout."""
    return Row(
        name=name,
        predicted_s=predicted["step_time_s"],
        measured_s=seen["step_time_s"]["median"],
        rounds_s=tuple(median(seconds) for seconds in seen["rounds_s"]),
        predicted_bytes=tuple(predicted["peak_allocated_bytes"]),
        measured_bytes=tuple(seen["peak_allocated_bytes"]),
    )


def drawing(tables: Sequence[Table]) -> str:
    """An SVG: predicted over measured seconds, one colour a table."""
    dots = [
        Dot(
            estimated_s=row.predicted_s,
            measured_s=row.measured_s,
            words=f"{table.title}, {row.name}",
            colour=colour,
        )
        for colour, table in enumerate(tables)
        for row in table.rows
    ]
    return standalone(scatter(dots, [table.title for table in tables]))


def standalone(drawn: str) -> str:
    """A drawing as a file of its own: with its namespace, colours and ground."""
    opened, rest = drawn.split(">", 1)
    head = opened.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return f"{head}><style>{STYLE}</style>{ground}{rest}\n"
