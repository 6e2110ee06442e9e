"""What a calibration changed, for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from costmodel.machine import BESIDE, Calibration, Parameter

if TYPE_CHECKING:
    from rich.console import Group

MOST_SHOWN: Final = 12
MOST_LEFT_OUT: Final = 5
WORTH_TELLING: Final = 0.005  # of a factor's logarithm, or of GiB


def calibration_view(calibration: Calibration) -> Group:
    """How many runs were used, what moved, and which runs were left out."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("calibrated", "before", "after", "±", "runs"):
        table.add_column(name, justify="left" if name == "calibrated" else "right")
    changed = moved(calibration)
    for one in changed:
        table.add_row(*_cells(one))
    none = f"no coefficient changed by more than {WORTH_TELLING:.1%}"
    told = table if changed else Text(none)
    lines = [Text(line) for line in calibration_lines(calibration)]
    return Group(lines[0], told, *lines[1:])


def calibration_lines(calibration: Calibration) -> Iterator[str]:
    """How many runs were used, and why others were not."""
    used = len(calibration.runs)
    before, after = calibration.noise
    words = f"calibrated by {used or 'no'} step time{'s' * (used != 1)}"
    if used:
        words += f"; runs scatter by {after:.1%} (assumed before: {before:.1%})"
    if calibration.memory:
        words += "; and by peaks of memory"
    yield words
    for one in calibration.left_out[:MOST_LEFT_OUT]:
        yield f"left out: {one.row}: {one.why}"
    if (more := len(calibration.left_out) - MOST_LEFT_OUT) > 0:
        yield f"left out: {more} more"


def moved(calibration: Calibration) -> list[Parameter]:
    """What moved by enough to tell, most of its prior's spread first."""
    told = [
        one
        for one in (*calibration.step, *calibration.memory)
        if abs(one.change) > WORTH_TELLING
    ]
    told.sort(key=lambda one: -abs(one.change) / max(one.spread, WORTH_TELLING))
    return told[:MOST_SHOWN]


def _cells(one: Parameter) -> tuple[str, ...]:
    if one.name.startswith(BESIDE):
        values = f"{one.before:.2f} GiB", f"{one.after:+.2f} GiB", f"{one.error:.2f}"
    else:
        values = f"{one.before:.3g}", f"{one.after:.3g}", f"{one.error:.1%}"
    return (f"  {one.name}", *values, str(one.rows))
