"""`Meter`: one line on a terminal's stderr that says how far a long search is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from planner.search import Progress

PATIENCE_S = 1.0  # shorter work shows nothing
EVERY_S = 0.2
_CLEAR = "\r\x1b[K"


@dataclass(kw_only=True)
class Meter:
    """Shows a search's progress, at most five times a second."""

    unit: str
    shown_s: float = PATIENCE_S - EVERY_S

    def __call__(self, progress: Progress) -> None:
        if progress.seconds < self.shown_s + EVERY_S:
            return
        self.shown_s = progress.seconds
        sys.stderr.write(_CLEAR + meter_words(progress, self.unit))
        sys.stderr.flush()


def meter_words(progress: Progress, unit: str) -> str:
    """Progress in one short line.

    >>> so_far = Progress(simulated=12, value=2.0, lower=1.9, seconds=3.0)
    >>> meter_words(so_far, "step_time_s")
    '12 simulated, best step_time_s 2, gap 5.00%'
    """
    words = f"{progress.simulated:,} simulated"
    if progress.value == inf:
        return f"{words}, none fits so far"
    gap = max(0.0, 1 - progress.lower / progress.value)
    return f"{words}, best {unit} {progress.value:.4g}, gap {gap:.2%}"


@contextmanager
def metered(unit: str) -> Iterator[Meter | None]:
    """A meter where stderr is a terminal, None elsewhere; its line does not stay."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    meter = Meter(unit=unit)
    try:
        yield meter
    finally:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
