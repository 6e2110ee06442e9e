"""The explorer's page: controls above the sections of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from costmodel.pages import SCRIPTS, figures, script, style
from costmodel.schedule import FLUSHED
from planner.explorer.answers import skeleton
from planner.explorer.state import Catalogue
from profiles.hardware import PRECISIONS

HERE: Final = Path(__file__).parent
CHARTS: Final = ("timeline", "memory", "breakdown", "pareto")
_DOUBLED: Final = [2**power for power in range(15)]
_DEGREES: Final = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
_BATCHES: Final = [None, *(2**power for power in range(15)), 1536, 3072, 6144]
_SLIDERS: Final[Mapping[str, tuple[str, Sequence[float | None]]]] = {
    "gpus": ("GPUs", _DOUBLED),
    "global_batch": ("global batch", _BATCHES),
    "seq_len": ("sequence length", [None, *(2**power for power in range(8, 18))]),
    "tp": ("tensor parallel", [1, 2, 4, 8, 16]),
    "pp": ("pipeline", _DEGREES),
    "cp": ("context parallel", [1, 2, 4, 8, 16]),
    "ep": ("expert parallel", [1, 2, 4, 8, 16, 32, 64]),
    "micro_batch": ("micro-batch", [None, 1, 2, 3, 4, 6, 8, 12, 16, 32]),
    "virtual_stages": ("virtual stages", [None, 2, 3, 4, 5, 6, 8, 10]),
    "zero": ("ZeRO level", [None, 0, 1, 2, 3]),
    "intra_gb_per_s": (
        "inside a node, GB/s",
        [None, 16, 25, 50, 100, 150, 200, 300, 450, 600, 900],
    ),
    "inter_gb_per_s": (
        "between nodes, GB/s",
        [None, 1.25, 3.125, 6.25, 12.5, 25, 50, 100, 200],
    ),
    "dollars_per_h": (
        "price, $/h per GPU",
        [None, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12],
    ),
    "mtbf_h": (
        "MTBF of a node, h",
        [None, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000],
    ),
    "tokens": (
        "tokens to train",
        [None, 1e9, 3e9, 1e10, 3e10, 1e11, 3e11, 1e12, 3e12, 1e13, 1.5e13],
    ),
}
_RECOMPUTE: Final = ("none", "selective", "cheap-ops", "full", "auto")


def scripts() -> dict[str, str]:
    """The scripts that the page loads from its server, by name."""
    own = (HERE / "explorer.js").read_text(encoding="utf-8")
    return {**{name: script(name) for name in SCRIPTS}, "explorer.js": own}


def explorer_page(start: Mapping[str, Any], catalogue: Catalogue) -> str:
    """The page, which asks *start* first; raises Unsupported where Bokeh is missing."""
    own = (HERE / "explorer.css").read_text(encoding="utf-8")
    selects = {
        "model": ("model", catalogue.models, False),
        "cluster": ("cluster", catalogue.clusters, False),
        "precision": ("precision", PRECISIONS, True),
        "schedule": ("schedule", FLUSHED, True),
        "recompute": ("recompute", _RECOMPUTE, True),
    }
    controls = "".join(
        _select(name, label, names, start.get(name), optional)
        for name, (label, names, optional) in selects.items()
    )
    controls += "".join(
        _slider(name, label, values, start.get(name))
        for name, (label, values) in _SLIDERS.items()
    )
    body = "".join(
        f'<section id="{one.name}"><h2>{escape(one.title)}</h2>'
        f'<div class="content">{one.html}</div></section>'
        for one in skeleton()
    )
    data = json.dumps({"items": figures(CHARTS), "series": {}, "start": dict(start)})
    loads = "".join(f'<script src="{name}"></script>' for name in scripts())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>meshwright explorer</title><style>{style()}{own}</style></head>\n"
        f'<body><main><form id="controls"><div class="grid">{controls}</div>'
        f"{_BUTTONS}</form>"
        '<p class="lead" id="lead" aria-live="polite"></p>'
        f'<p id="error" class="bad" role="alert"></p>{body}</main>\n'
        '<script type="application/json" id="charts">'
        f"{data.replace('<', chr(92) + 'u003c')}</script>{loads}</body></html>\n"
    )


_BUTTONS: Final = (
    '<p class="buttons"><button type="button" id="plan">Plan the best layout</button> '
    '<button type="button" id="save">Save layout JSON</button> '
    '<button type="button" id="copy">Copy command</button> '
    '<small id="status"></small></p><p><code id="command"></code></p>'
)


def _select(
    name: str, label: str, names: Iterable[str], chosen: Any, optional: bool
) -> str:
    empty = '<option value="">default</option>' if optional else ""
    options = "".join(
        f'<option value="{escape(one)}"{" selected" if one == chosen else ""}>'
        f"{escape(one)}</option>"
        for one in names
    )
    return (
        f'<label>{escape(label)}<select name="{name}">{empty}{options}</select></label>'
    )


def _slider(name: str, label: str, values: Sequence[float | None], chosen: Any) -> str:
    """A slider over *values*, in order, the *chosen* one among them."""
    numbers = {value for value in values if value is not None}
    numbers |= {chosen} if chosen is not None else set()
    ordered: list[float | None] = [None] if None in values else []
    ordered += sorted(numbers)
    at = ordered.index(chosen) if chosen in ordered else 0
    return (
        f"<label>{escape(label)} <output></output>"
        f'<input type="range" name="{name}" min="0" max="{len(ordered) - 1}" step="1" '
        f'value="{at}" data-values="{escape(json.dumps(ordered))}"></label>'
    )
