"""One HTML page of a table of runs: how far estimates are off, and where.

It stands alone: styles and drawings are in it, and it loads nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from costmodel.machine import Coefficient
from costmodel.report.svg import STYLE, Dot, key, scatter, strips
from costmodel.runs import Compared, oom_words

_STYLE: Final = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px;
  padding: 0 1rem; color: #1c2330; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 2px 9px; text-align: right; border-bottom: 1px solid #e3e7ee; }
td:first-child, th:first-child { text-align: left; min-width: 15rem; }
th { border-bottom: 2px solid #8b95a7; font-weight: 600; }
tr.all td { font-weight: 600; border-top: 2px solid #8b95a7; }
svg { max-width: 100%; height: auto; }
ul.key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1.2rem; }
ul.key svg { vertical-align: middle; margin-right: 4px; }
p.note { color: #56627a; max-width: 46rem; }
@media (prefers-color-scheme: dark) { body { background: #fff; } }
"""
_NOTE: Final = """
Error is estimated over measured seconds less 1. “Without family” and “without source”
are errors by coefficients fitted to all other families, or sources. τ and regret are
means over groups of runs that differ in their layout only. Runs count where their step
time is measured or derived from tokens per second, and shape, layout, batch and cluster
are known.
"""
Cell = tuple[str, Callable[[Mapping[str, Any]], Any], str]
_COLUMNS: Final[tuple[Cell, ...]] = (
    ("rows", lambda part: part["rows"], ","),
    ("priced", lambda part: part["priced"], ","),
    ("compared", lambda part: part["compared"], ","),
    ("mean error", lambda part: part["step_time_mape"], ".1%"),
    ("median", lambda part: part["step_time_median_ape"], ".1%"),
    ("bias", lambda part: part["step_time_bias"], "+.1%"),
    ("without family", lambda part: part["without_family"]["mean"], ".1%"),
    ("without source", lambda part: part["without_source"]["mean"], ".1%"),
    ("in p10–p90", lambda part: part["inside_interval"], ".0%"),
    ("τ", lambda part: part["kendall_tau_by_group"], ".2f"),
    ("regret", lambda part: part["regret_by_group"], ".1%"),
    ("memory", lambda part: part["peak_memory_mape"], ".1%"),
)


def runs_page(
    title: str,
    compared: Sequence[Compared],
    summary: Mapping[str, Any],
    fitted: Iterable[Coefficient] = (),
) -> str:
    """The page of *compared* runs, with the *summary* of all of them and its parts."""
    counted = [item for item in compared if item.times]
    sections = [
        f"<h1>{escape(title)}</h1>",
        _headline(summary),
        f'<p class="note">{_NOTE}</p>',
        _section("Estimated and measured", _scatter(counted)),
        _section("By source", _table("source", summary["by_source"], summary)),
        _strips(counted, "source"),
        _section("By device", _table("device", summary["by_device"], summary)),
        _strips(counted, "device"),
        _section("By framework", _table("framework", summary["by_framework"], summary)),
    ]
    for name, parts in summary["by_feature"].items():
        sections.append(_section(f"By {name}", _table(name, parts)))
        sections.append(_feature_strips(counted, name))
    sections += [
        _section("Memory", f"<p>{escape(oom_words(summary['oom']))}.</p>"),
        _section("Rows without a price", _reasons(summary["not_priced"])),
        _section("Fitted parameters", _parameters(fitted)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}{STYLE}</style></head>\n"
        f"<body>{''.join(sections)}</body></html>\n"
    )


def _headline(whole: Mapping[str, Any]) -> str:
    complete = f"{whole['complete_priced']:,} of {whole['complete']:,}"
    figures = (
        ("rows", f"{whole['rows']:,}"),
        ("priced of those complete", complete),
        ("compared", f"{whole['compared']:,}"),
        ("mean error", _cell(whole["step_time_mape"], ".2%")),
        ("median", _cell(whole["step_time_median_ape"], ".2%")),
        ("mean over sources", _cell(whole["step_time_mape_by_source"], ".2%")),
        ("mean, family left out", _cell(whole["without_family"]["mean"], ".2%")),
        ("median, family left out", _cell(whole["without_family"]["median"], ".2%")),
        ("mean, source left out", _cell(whole["without_source"]["mean"], ".2%")),
        ("inside p10–p90", _cell(whole["inside_interval"], ".0%")),
        ("τ over sources, groups", _both(whole, "kendall_tau", ".2f")),
        ("regret over sources, groups", _both(whole, "regret", ".1%")),
        ("peak memory", _cell(whole["peak_memory_mape"], ".1%")),
    )
    rows = "".join(
        f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in figures
    )
    return f"<table>{rows}</table>"


def _both(whole: Mapping[str, Any], name: str, form: str) -> str:
    return f"{_cell(whole[name], form)}, {_cell(whole[f'{name}_by_group'], form)}"


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _scatter(counted: Sequence[Compared]) -> str:
    devices = _largest(counted, lambda item: item.run.cell("device"), 7)
    colour = {name: number for number, name in enumerate(devices)}
    dots = [_dot(item, colour.get(item.run.cell("device"), 7)) for item in counted]
    entries = "".join(key(n, name) for n, name in enumerate([*devices, "others"]))
    return f'{scatter(dots)}<ul class="key">{entries}</ul>'


def _strips(counted: Sequence[Compared], column: str) -> str:
    return _by(counted, lambda item: item.run.cell(column) or "(not said)")


def _feature_strips(counted: Sequence[Compared], feature: str) -> str:
    return _by(counted, lambda item: item.features[feature])


def _by(counted: Sequence[Compared], name: Callable[[Compared], str]) -> str:
    """Errors by what *name* says, most runs first, as tables have it."""
    groups: dict[str, list[Dot]] = defaultdict(list)
    for item in counted:
        groups[name(item)].append(_dot(item))
    most = sorted(groups.items(), key=lambda item: -len(item[1]))
    return strips(dict(most)) if groups else ""


def _dot(item: Compared, colour: int = 0) -> Dot:
    assert item.times is not None
    estimated_s, measured_s = item.times
    cell = item.run.cell
    layout = " ".join(
        f"{name}{cell(name)}" for name in ("tp", "pp", "dp") if cell(name)
    )
    what = f"{cell('model')} on {cell('gpus')} {cell('device')}"
    words = f"row {item.run.row}, {what}, {layout}"
    return Dot(
        estimated_s=estimated_s, measured_s=measured_s, words=words, colour=colour
    )


def _table(
    title: str,
    parts: Mapping[str, Mapping[str, Any]],
    whole: Mapping[str, Any] | None = None,
) -> str:
    head = "".join(f"<th>{name}</th>" for name, _, _ in _COLUMNS)
    most = sorted(parts.items(), key=lambda item: -item[1]["compared"])
    rows = [_row(name or "(not said)", part) for name, part in most]
    if whole is not None:
        rows.append(_row("all", whole, kind=' class="all"'))
    return (
        f"<table><thead><tr><th>{escape(title)}</th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _row(name: str, part: Mapping[str, Any], kind: str = "") -> str:
    cells = "".join(
        f"<td>{_cell(figure(part), form)}</td>" for _, figure, form in _COLUMNS
    )
    return f"<tr{kind}><td>{escape(name)}</td>{cells}</tr>"


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _reasons(counts: Mapping[str, int]) -> str:
    rows = "".join(
        f"<tr><td>{escape(reason)}</td><td>{count:,}</td></tr>"
        for reason, count in counts.items()
    )
    return f"<table>{rows}</table>" if rows else "<p>None.</p>"


def _parameters(fitted: Iterable[Coefficient]) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("prior", "value", "standard error", "runs")
    )
    rows = "".join(
        f"<tr><td>{escape(item.name)}<br><small>{escape(item.meaning)}</small></td>"
        f"<td>{item.prior:.3g} ± {item.spread:.0%}</td><td>{item.value:.3g}</td>"
        f"<td>{item.error:.1%}</td><td>{item.rows:,}</td></tr>"
        for item in fitted
    )
    return f"<table><tr><th>parameter</th>{head}</tr>{rows}</table>"


def _largest(
    items: Iterable[Compared], value: Callable[[Compared], str], most: int
) -> list[str]:
    """The values that most items have."""
    counts: dict[str, int] = defaultdict(int)
    for item in items:
        counts[value(item)] += 1
    return sorted(counts, key=lambda name: -counts[name])[:most]
