"""Curves over a range of questions: charts of lines, and their page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from costmodel.pages.charts import blank, hover
from costmodel.pages.fragments import Section, chart, rows
from costmodel.pages.page import filled_page

if TYPE_CHECKING:
    from bokeh.plotting import figure

COLOURS: Final = (
    *("#1f6fb4", "#d9761a", "#2d9a4b", "#c33b3b", "#7c58b0", "#8a5a44"),
    *("#c95fa6", "#6f7683"),
)
LINEAR: Final = "#7f8896"
MOST_TICKS: Final = 7  # that a phone has room for
MOST_LINES: Final = 24  # beyond, nobody tells them apart
Places = Sequence[tuple[Any, float]]  # of a line: numbers or names, and their values


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A chart of *lines* by their names; *dashed* ones are for comparison, and points
    of *hollow* do not fit in memory."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Places]
    dashed: Mapping[str, Places] = field(default_factory=dict)
    hollow: frozenset[tuple[Any, float]] = frozenset()
    log_x: bool = False
    log_y: bool = False

    @property
    def named(self) -> bool:
        """Whether x are names, not numbers."""
        xs = [x for places in self.lines.values() for x, _ in places]
        return any(isinstance(x, str | bool) for x in xs)

    def coloured(self) -> list[tuple[str, Places, str, str]]:
        """(name, places, colour, dash) of every line."""
        own = [
            (name, places, COLOURS[number % len(COLOURS)], "solid")
            for number, (name, places) in enumerate(self.lines.items())
        ]
        return own + [(*line, LINEAR, "dashed") for line in self.dashed.items()]


def curves_page(
    title: str,
    lead: str,
    charts: Sequence[Curves],
    heads: Sequence[str],
    body: Sequence[Sequence[object]],
) -> str:
    """A page of charts with their numbers as a table; raises Unsupported where Bokeh is
    missing."""
    sections = [
        Section(
            name=one.name,
            title=one.title,
            html=chart(one.name, f"{one.y_label} over {one.x_label}", _words(one)),
        )
        for one in charts
    ]
    numbers = Section(name="numbers", title="Numbers", html=rows(heads, body))
    return filled_page(
        title,
        lead,
        [*sections, numbers],
        {one.name: _drawn(one) for one in charts},
        {one.name: {"legend": _legend(one)} for one in charts},
    )


def _words(one: Curves) -> str:
    hollow = " Hollow points do not fit in memory." if one.hollow else ""
    return f"{one.y_label} over {one.x_label}.{hollow}"


def _legend(one: Curves) -> list[tuple[str, str]]:
    return [
        (f"{name} (dashed)" if dash == "dashed" else name, colour)
        for name, _, colour, dash in one.coloured()
        if name
    ]


def _drawn(one: Curves) -> figure:
    from bokeh.models import FactorRange, FixedTicker, NumeralTickFormatter, Range1d

    more: dict[str, Any] = {}
    ticks: list[float] = []
    places = [place for line in one.lines.values() for place in line]
    if one.named:
        names = dict.fromkeys(str(x) for x, _ in places)
        more["x_range"] = FactorRange(factors=list(names))
    elif one.log_x:
        more["x_axis_type"] = "log"
        ticks = _ticks(sorted({float(x) for x, _ in places}))
    if one.log_y:
        more["y_axis_type"] = "log"
    else:
        most = max((y for _, y in places), default=1.0)
        more["y_range"] = Range1d(start=0, end=1.08 * most or 1.0)
    made = blank(one.name, one.x_label, one.y_label, "box_zoom,reset,save", **more)
    if one.log_y:
        made.yaxis.formatter = NumeralTickFormatter(format="0,0.[000000]")
    if ticks:
        made.xaxis.ticker = FixedTicker(ticks=ticks)
        made.xaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    for name, line, colour, dash in one.coloured():
        xs = [str(x) if one.named else x for x, _ in line]
        source = _source(name, xs, [y for _, y in line])
        if not one.named:
            made.line(
                x="x",
                y="y",
                line_width=2,
                line_color=colour,
                line_dash=dash,
                source=source,
            )
        if dash == "dashed":
            continue
        fits = [place not in one.hollow for place in line]
        source.data["fill"] = [colour if fit else None for fit in fits]
        points = made.scatter(
            x="x",
            y="y",
            size=8,
            line_width=2,
            line_color=colour,
            fill_color="fill",
            source=source,
        )
        hover(
            made,
            points,
            **{
                "line": "@name",
                one.x_label: "@x" if one.named else "@x{0,0.[000]}",
                one.y_label: "@y{0,0.[000]}",
            },
        )
    return made


def _ticks(values: Sequence[float]) -> list[float]:
    """Values to mark on a logarithmic axis: all, or of many every so many.

    >>> _ticks([1.0, 2.0, 4.0]), len(_ticks([2.0**n for n in range(15)]))
    ([1.0, 2.0, 4.0], 5)
    """
    apart = -(-len(values) // MOST_TICKS)
    return list(values[::apart])


def _source(name: str, xs: list[Any], ys: list[float]) -> Any:
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({"x": xs, "y": ys, "name": [name] * len(xs)})
