"""`Meter`: one line on a terminal's stderr that says how far a long search is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from planner.search import Progress
from profiles.commandline import Line, left_words, own_line
from profiles.units import format_seconds

_UNITS = {"step_time_s": ("step", format_seconds)}


@dataclass(kw_only=True)
class Meter:
    """Shows a search's progress; what is left is estimated from how fast the gap has
    closed since the first layout was found."""

    unit: str
    line: Line
    first: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        if self.first is None and progress.value < inf:
            self.first = progress
        self.line.show(meter_words(progress, self.unit, self.first))


def meter_words(progress: Progress, unit: str, first: Progress | None = None) -> str:
    """Progress in one short line.

    >>> begun = Progress(simulated=1, value=2.0, lower=1.6, seconds=1.0)
    >>> so_far = Progress(simulated=12, value=2.0, lower=1.9, seconds=3.0)
    >>> meter_words(so_far, "step_time_s", begun)
    'planning: 12 layouts simulated, best step 2.00 s, gap 5.00 %, about 1 s left'
    """
    several = "" if progress.simulated == 1 else "s"
    words = f"planning: {progress.simulated:,} layout{several} simulated"
    if progress.value == inf:
        return f"{words}, none fits so far, {progress.seconds:.0f} s"
    name, form = _UNITS.get(unit, (unit, "{:.4g}".format))
    gap = _gap(progress)
    words += f", best {name} {form(progress.value)}, gap {100 * gap:.2f} %"
    closed = 0.0 if first is None else _gap(first) - gap
    if first is None or closed <= 0:
        return f"{words}, {progress.seconds:.0f} s"
    left_s = gap / closed * (progress.seconds - first.seconds)
    return f"{words}, about {left_words(left_s)} left"


def _gap(progress: Progress) -> float:
    return max(0.0, 1 - progress.lower / progress.value)


@contextmanager
def metered(unit: str) -> Iterator[Meter | None]:
    """A meter where stderr is a terminal, None elsewhere; its line does not stay."""
    with own_line() as line:
        yield None if line is None else Meter(unit=unit, line=line)
