"""A whole page: one file that loads nothing, in light and dark, on a phone and in
print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from costmodel.pages.charts import SCRIPTS, figures, require_bokeh, script, style
from costmodel.pages.fragments import Section, estimate_sections, sentence
from costmodel.pages.series import estimate_series
from costmodel.simulation import Estimate
from profiles.hardware import Cluster

ALONE: Final = (  # nothing is loaded, whatever stands in the page
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


def estimate_page(estimate: Estimate, cluster: Cluster) -> str:
    """The page of one layout; raises Unsupported where Bokeh is missing."""
    return whole_page(
        f"{estimate.job.model} on {estimate.layout.gpus:,} × {estimate.device}",
        sentence(estimate),
        estimate_sections(estimate, cluster),
        estimate_series(estimate),
    )


def whole_page(
    title: str, lead: str, sections: Sequence[Section], series: Mapping[str, Any]
) -> str:
    """The page with these *sections*, whose charts draw *series*; raises Unsupported
    where Bokeh is missing."""
    return _page(title, lead, sections, {"items": figures(series), "series": series})


def filled_page(
    title: str,
    lead: str,
    sections: Sequence[Section],
    drawn: Mapping[str, Any],
    series: Mapping[str, Any],
) -> str:
    """The same with figures that were *drawn* with their data; *series* holds their
    legends."""
    require_bokeh()
    from bokeh.embed import json_item

    items = {name: json_item(figure) for name, figure in drawn.items()}
    return _page(title, lead, sections, {"items": items, "series": series})


def _page(
    title: str, lead: str, sections: Sequence[Section], data: Mapping[str, Any]
) -> str:
    scripts = "".join(f"<script>{_whole(script(name))}</script>" for name in SCRIPTS)
    body = "".join(
        f'<section id="{one.name}"><h2>{escape(one.title)}</h2>{one.html}</section>'
        for one in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{ALONE}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style()}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(lead)}</p>{body}</main>\n'
        f'<script type="application/json" id="charts">{_inside(data)}</script>\n'
        f"{scripts}</body></html>\n"
    )


def _inside(data: Mapping[str, Any]) -> str:
    """JSON that no script element ends in, whatever names are in it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _whole(text: str) -> str:
    """A script that no element ends in."""
    return text.replace("</script", "<\\/script")
