"""Bokeh's figures without their data, and the scripts that fill and draw them.

BokehJS goes into the page as it is shipped with Bokeh, so that a page loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profiles.errors import Unsupported

if TYPE_CHECKING:
    from bokeh.plotting import figure

HERE: Final = Path(__file__).parent
SCRIPTS: Final = ("bokeh.min.js", "charts.js")  # in the order in which they run
STYLE: Final = "page.css"
_TOOLS: Final = "xpan,box_zoom,reset,save"
HEIGHTS: Final = {"timeline": 380, "memory": 300, "breakdown": 280, "pareto": 320}


@cache
def script(name: str) -> str:
    """The text of one of `SCRIPTS`; raises Unsupported where Bokeh is missing."""
    if name != "bokeh.min.js":
        return (HERE / name).read_text(encoding="utf-8")
    require_bokeh()
    import bokeh

    file = Path(bokeh.__file__).parent / "server/static/js" / name
    return file.read_text(encoding="utf-8")


@cache
def style() -> str:
    """The style sheet of every page."""
    return (HERE / STYLE).read_text(encoding="utf-8")


def require_bokeh() -> None:
    """Raise Unsupported where Bokeh is missing."""
    try:
        import bokeh.plotting  # noqa: F401
    except ImportError:
        raise Unsupported(
            "pages are drawn by Bokeh, which is not installed; run "
            "pip install 'meshwright[report]'"
        ) from None


def figures(names: Iterable[str]) -> dict[str, Any]:
    """The charts called so, as BokehJS takes them; raises Unsupported where Bokeh is
    missing."""
    require_bokeh()
    from bokeh.embed import json_item

    makers = {
        "timeline": _timeline,
        "memory": _memory,
        "breakdown": _breakdown,
        "pareto": _pareto,
    }
    return {name: json_item(makers[name]()) for name in names}


def blank(name: str, x: str, y: str, tools: str = _TOOLS, **more: Any) -> figure:
    """A figure without anything in it; of another name than ours 320 pixels high."""
    from bokeh.models import BasicTickFormatter, WheelZoomTool
    from bokeh.plotting import figure

    made = figure(
        name=name,
        height=HEIGHTS.get(name, 320),
        sizing_mode="stretch_width",
        x_axis_label=x,
        y_axis_label=y,
        tools=tools,
        output_backend="canvas",
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_alpha=0,
        **more,
    )
    if "xpan" in tools:
        wheel = WheelZoomTool(dimensions="width", modifiers="ctrl")
        made.add_tools(wheel)
    for axis in (*made.xaxis, *made.yaxis):
        if isinstance(axis.formatter, BasicTickFormatter):
            axis.formatter.use_scientific = False
    made.toolbar.logo = None
    made.toolbar.autohide = True
    return made


def hover(made: figure, drawn: Any, **tooltips: str) -> None:
    """Say what is under the pointer."""
    from bokeh.models import HoverTool

    made.add_tools(HoverTool(renderers=[drawn], tooltips=list(tooltips.items())))


def _source(name: str, *columns: str) -> Any:
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({column: [] for column in columns}, name=name)


def _timeline() -> figure:
    from bokeh.models import BasicTicker, Range1d

    made = blank(
        "timeline",
        "seconds",
        "pipeline rank",
        x_range=Range1d(start=0, end=1),
        y_range=Range1d(start=1, end=0),
    )
    source = _source("bars", "left", "right", "top", "bottom", "color", "what", "time")
    drawn = made.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        fill_color="color",
        line_color=None,
        source=source,
    )
    made.yaxis.ticker = BasicTicker(min_interval=1)
    made.ygrid.visible = False
    hover(made, drawn, action="@what", time="@time")
    return made


def _memory() -> figure:
    from bokeh.models import Range1d

    made = blank(
        "memory",
        "seconds",
        "GiB",
        x_range=Range1d(start=0, end=1),
        y_range=Range1d(start=0, end=1),
    )
    lines = _source("lines", "xs", "ys", "color", "width", "rank", "peak")
    drawn = made.multi_line(
        xs="xs", ys="ys", line_color="color", line_width="width", source=lines
    )
    capacity = _source("capacity", "x", "y")
    made.line(
        x="x",
        y="y",
        line_dash="dashed",
        line_width=2,
        line_color="#c33b3b",
        source=capacity,
    )
    hover(made, drawn, rank="@rank", peak="@peak{0.0} GiB")
    return made


def _breakdown() -> figure:
    from bokeh.models import DataRange1d, FactorRange

    made = blank(
        "breakdown",
        "seconds of the step",
        "",
        tools="save",
        x_range=DataRange1d(start=0),
        y_range=FactorRange(),
    )
    source = _source("parts", "name", "seconds", "share", "color")
    drawn = made.hbar(
        y="name",
        right="seconds",
        height=0.7,
        fill_color="color",
        line_color=None,
        source=source,
    )
    made.ygrid.visible = False
    hover(made, drawn, part="@name", seconds="@seconds{0.000}", share="@share")
    return made


def _pareto() -> figure:
    from bokeh.models import Range1d

    made = blank(
        "pareto",
        "peak memory, GiB",
        "tokens/s per GPU",
        tools="pan,box_zoom,reset,save",
        x_range=Range1d(start=0, end=1),
        y_range=Range1d(start=0, end=1),
    )
    front = _source("front", "x", "y")
    made.step(
        x="x", y="y", mode="after", line_color="#7f8896", line_width=2, source=front
    )
    points = _source("points", "x", "y", "color", "size", "layout", "role")
    drawn = made.scatter(
        x="x",
        y="y",
        size="size",
        fill_color="color",
        line_color=None,
        fill_alpha=0.9,
        source=points,
    )
    capacity = _source("capacity", "x", "y")
    made.line(
        x="x",
        y="y",
        line_dash="dashed",
        line_width=2,
        line_color="#c33b3b",
        source=capacity,
    )
    hover(
        made,
        drawn,
        layout="@layout",
        role="@role",
        memory="@x{0.0} GiB",
        tokens="@y{0,0} /s per GPU",
    )
    return made
