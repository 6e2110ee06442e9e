"""The page of a sweep: its charts, and its numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from costmodel.pages.curves import MOST_LINES, Curves, curves_page
from costmodel.simulation import Estimate
from costmodel.sweep import (
    COLUMNS,
    columns_of,
    counted_in,
    dollars_per_mtoken,
    point_words,
    unit_of,
)
from profiles.errors import Infeasible

_FAR: Final = 16  # times: numbers this far apart are drawn logarithmically
_QUANTITIES: Final[Mapping[str, tuple[str, Callable[[Estimate], float | None]]]] = {
    "throughput": ("tokens/s per GPU", lambda found: found.tokens_per_s_per_gpu),
    "step": ("seconds a step", lambda found: found.step_time_s),
    "cost": ("dollars per million tokens", dollars_per_mtoken),
}
Rows = Sequence[tuple[Mapping[str, Any], Estimate | str]]


def sweep_page(rows: Rows, asked: str = "A price for each point") -> str:
    """Charts over the first axis that is of numbers, a line for each combination of
    the others; raises Infeasible where no point has a price, and as `curves_page`."""
    found = [(point, one) for point, one in rows if not isinstance(one, str)]
    if not found:
        raise Infeasible(
            "--plot: no point of the sweep has a price to draw; see the table",
            constraint="layouts",
            nearest=None,
        )
    axis = _axis([point for point, _ in found])
    unit = unit_of(one for _, one in found)
    charts = [
        made
        for name, (label, read) in _QUANTITIES.items()
        if (made := _chart(name, counted_in(unit, label), read, axis, found))
        is not None
    ]
    first = found[0][1]
    axes = list(rows[0][0])
    return curves_page(
        f"{first.job.model}: {', '.join(name.replace('_', '-') for name in axes)}",
        f"{asked}: {len(rows):,} points, {len(found):,} with a price.",
        charts,
        ["point", *columns_of(rows), ""],
        [_line(point, one) for point, one in rows],
    )


def _line(point: Mapping[str, Any], found: Estimate | str) -> list[str]:
    words = point_words(point)
    if isinstance(found, str):
        return [words, *[""] * len(COLUMNS), found]
    return [words, *(write(found) for write in COLUMNS.values()), ""]


def _axis(points: Sequence[Mapping[str, Any]]) -> str:
    """What is drawn along: of the axes of numbers the one with most values."""

    def rank(name: str) -> tuple[bool, int]:
        values = [point[name] for point in points]
        numbers = all(isinstance(one, int | float) for one in values)
        switch = any(isinstance(one, bool) for one in values)
        return numbers and not switch, len(set(values))

    return max(points[0], key=rank)


def _chart(
    name: str,
    label: str,
    read: Callable[[Estimate], float | None],
    axis: str,
    found: Sequence[tuple[Mapping[str, Any], Estimate]],
) -> Curves | None:
    lines: dict[str, list[tuple[Any, float]]] = defaultdict(list)
    hollow = set()
    for point, one in found:
        value = read(one)
        if value is None:
            continue
        rest = {key: value for key, value in point.items() if key != axis}
        lines[point_words(rest)].append((point[axis], value))
        if not one.fits:
            hollow.add((point[axis], value))
    if not lines:
        return None
    shown = dict(list(lines.items())[:MOST_LINES])
    xs, ys = zip(*(place for line in lines.values() for place in line), strict=True)
    return Curves(
        name=name,
        title=label[:1].upper() + label[1:],
        x_label=axis.replace("_", "-"),
        y_label=label,
        lines={name: _sorted(line) for name, line in shown.items()},
        hollow=frozenset(hollow),
        log_x=_far(xs),
        log_y=_far(ys),
    )


def _sorted(line: list[tuple[Any, float]]) -> list[tuple[Any, float]]:
    if any(isinstance(x, str | bool) for x, _ in line):
        return line
    return sorted(line)


def _far(numbers: Iterable[Any]) -> bool:
    values = list(numbers)
    if not all(isinstance(one, int | float) and one > 0 for one in values):
        return False
    return bool(max(values) >= _FAR * min(values))
