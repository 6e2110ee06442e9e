"""A measured step beside the priced one: which actions took longer, worst first.

Both are traces of one layout (`about`). An action's seconds are those of a step, of a
rank that holds its stage: the mean over those ranks, of measured steps the median. What
no action covers is `between actions`: bubbles, and what the host does.

A RECV is a wait for a message, bubble and all; a send that passes hide is no action of
the priced step, and measured it is what posting it takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

from costmodel.schedule import Action
from costmodel.trace.events import ACTIONS, Trace
from profiles.errors import Contradiction, InvalidFile, InvalidSpec
from profiles.units import format_seconds

if TYPE_CHECKING:
    from rich.table import Table

BETWEEN: Final = "between actions"
WORDS: Final = {
    "F": "forward",
    "B": "backward",
    "I": "backward of inputs",
    "W": "backward of weights",
    "OVERLAP_F_B": "forward beside backward",
    "SEND_F": "send activations",
    "RECV_F": "wait for activations",
    "SEND_B": "send gradients",
    "RECV_B": "wait for gradients",
    "UNSHARD": "gather parameters",
    "RESHARD": "let parameters go",
    "REDUCE_GRAD": "reduce gradients",
    "D2H": "copy to the host",
    "H2D": "copy from the host",
    "STEP": "optimizer step",
}
Key = tuple[str, int | None]  # what, of which stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Seconds a step of an action of a stage; a rank does it *count* times."""

    what: str
    stage: int | None  # None of what is no stage's
    count: float
    priced_s: float
    measured_s: float

    @property
    def longer_s(self) -> float:
        return self.measured_s - self.priced_s

    def document(self, steps: int) -> dict[str, Any]:
        return {
            "action": self.what,
            "stage": self.stage,
            "count": self.count,
            "priced_s": self.priced_s,
            "measured_s": self.measured_s,
            "longer_s": self.longer_s,
            "longer_s_of_all_steps": self.longer_s * steps,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All actions, the one that took longest beyond its price first."""

    steps: int
    priced_step_s: float
    measured_step_s: float
    rows: tuple[Compared, ...]

    def document(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "priced_step_s": self.priced_step_s,
            "measured_step_s": self.measured_step_s,
            "actions": [row.document(self.steps) for row in self.rows],
        }


def compared(priced: Trace, measured: Trace) -> Comparison:
    """Raises Contradiction for traces of different layouts, InvalidFile for actions
    that no schedule has."""
    if priced.about["question"] != measured.about["question"]:
        raise Contradiction(
            f"--compare: the trace is of {_words(measured)}, and what is priced is "
            f"{_words(priced)}, or they differ in a layer, the batch or the schedule; "
            "give the layout file that was executed"
        )
    first, then = _Seconds(priced), _Seconds(measured)
    rows = [
        Compared(
            what=what,
            stage=stage,
            count=max(one.count(what, stage) for one in (first, then)),
            priced_s=first.of(what, stage),
            measured_s=then.of(what, stage),
        )
        for what, stage in dict.fromkeys((*first.keys, *then.keys))
    ]
    return Comparison(
        steps=len(then.steps),
        priced_step_s=first.step_s,
        measured_step_s=then.step_s,
        rows=tuple(sorted(rows, key=lambda row: -row.longer_s)),
    )


class _Seconds:
    """The actions of a trace, by what and stage, by step and process."""

    def __init__(self, trace: Trace) -> None:
        found: dict[Key, dict[int, dict[int, list[float]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        ends: dict[int, tuple[float, float]] = {}
        covered: dict[tuple[int, int], float] = defaultdict(float)
        for one in trace.slices:
            low, high = ends.get(one.step, (one.start_s, one.end_s))
            ends[one.step] = min(low, one.start_s), max(high, one.end_s)
            if one.thread != ACTIONS:
                continue
            action = _action(one.name)
            key = (str(action.kind), action.stage)
            found[key][one.step][one.process].append(one.seconds)
            covered[one.step, one.process] += one.seconds
        for (step, process), seconds in covered.items():
            low, high = ends[step]
            found[BETWEEN, None][step][process].append(max(high - low - seconds, 0.0))
        self.steps, self._found = ends, found

    @property
    def keys(self) -> Sequence[Key]:
        return list(self._found)

    @property
    def step_s(self) -> float:
        return median(high - low for low, high in self.steps.values())

    def of(self, what: str, stage: int | None) -> float:
        """Seconds a step."""
        by_step = self._found.get((what, stage), {})
        sums = [
            fmean(sum(each) for each in by_process.values())
            for by_process in by_step.values()
        ]
        return median(sums) if sums else 0.0

    def count(self, what: str, stage: int | None) -> float:
        """How often a rank does it in a step."""
        by_step = self._found.get((what, stage), {})
        return max(
            (
                fmean(len(each) for each in by_process.values())
                for by_process in by_step.values()
            ),
            default=0.0,
        )


def _action(name: str) -> Action:
    try:
        return Action.parse(name)
    except InvalidSpec as error:
        raise InvalidFile(f"--compare: the trace holds {error}") from None


def _words(trace: Trace) -> str:
    degrees = trace.about.get("summary")
    degrees = degrees if isinstance(degrees, dict) else {}
    said = [
        f"{name} {degrees[name]}"
        for name in ("tp", "pp", "dp", "cp", "ep", "micro_batch")
        if degrees.get(name, "1") != "1"
    ]
    gpus = trace.about.get("gpus")
    return f"{trace.about.get('model')} on {gpus} ranks ({', '.join(said)})"


def comparison_table(found: Comparison) -> Table:
    """Every action, worst first; those of under a thousandth of the step left out."""
    from rich.table import Table

    off = found.priced_step_s / found.measured_step_s - 1
    title = (
        f"measured {format_seconds(found.measured_step_s)} a step (median of "
        f"{found.steps}), priced {format_seconds(found.priced_step_s)} ({off:+.1%})"
    )
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1),
        header_style="bold",
    )
    table.add_column("action", no_wrap=True)
    for name in ("stage", "times", "priced", "measured", "longer", "of all steps"):
        table.add_column(name, justify="right", no_wrap=True)
    least_s = found.measured_step_s / 1e3
    for row in found.rows:
        if max(row.priced_s, row.measured_s) < least_s:
            continue
        table.add_row(
            WORDS.get(row.what, row.what),
            "" if row.stage is None else str(row.stage),
            f"{row.count:g}",
            format_seconds(row.priced_s),
            format_seconds(row.measured_s),
            _signed(row.longer_s),
            _signed(row.longer_s * found.steps),
        )
    return table


def _signed(seconds: float) -> str:
    sign = "-" if seconds < 0 else "+"
    return f"{sign}{format_seconds(abs(seconds))}"
