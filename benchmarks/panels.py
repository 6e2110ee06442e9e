"""Small line charts side by side, as SVG: one panel a name, all on the same axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]  # place from 0 to 1, and a share
WIDTH, HEIGHT, ACROSS = 210, 150, 4
LEFT, TOP, FOOT, RIGHT = 36, 24, 26, 12
STYLE = (
    "text { font: 11px system-ui, sans-serif; fill: #3c4657; } .grid { stroke: "
    "#e3e7ee; } .mean { fill: none; stroke: #1f6fb4; stroke-width: 2; } .median { "
    "fill: none; stroke: #d9761a; stroke-width: 2; stroke-dasharray: 4 3; } "
    "rect { fill: #fff; }"
)


def panels(
    names: Mapping[str, Mapping[str, Sequence[float]]],
    marks: Sequence[str],
    *,
    most: float,
    title: str,
) -> str:
    """A panel for each of *names* with its lines (mean, median) over *marks*; values
    above *most* lie on the edge."""
    rows = -(-len(names) // ACROSS)
    width, height = ACROSS * WIDTH, rows * HEIGHT + TOP
    parts = [f"<style>{STYLE}</style>", f'<rect width="{width}" height="{height}"/>']
    parts.append(_text(8, 16, title, "start"))
    for number, (name, lines) in enumerate(names.items()):
        row, column = divmod(number, ACROSS)
        place = f"translate({column * WIDTH} {row * HEIGHT + TOP})"
        inner = "".join(_panel(name, lines, marks, most))
        parts.append(f'<g transform="{place}">{inner}</g>')
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return head + "\n".join(parts) + "</svg>\n"


def _panel(
    name: str,
    lines: Mapping[str, Sequence[float]],
    marks: Sequence[str],
    most: float,
) -> list[str]:
    bottom, right = HEIGHT - FOOT, WIDTH - RIGHT

    def x(number: int) -> float:
        return LEFT + (right - LEFT) * number / (len(marks) - 1)

    def y(share: float) -> float:
        return bottom - (bottom - TOP) * min(share, most) / most

    parts = [_text(LEFT, TOP - 8, name, "start")]
    for step in range(5):
        share = most * step / 4
        ends = f'x1="{LEFT}" x2="{right}" y1="{y(share):.1f}" y2="{y(share):.1f}"'
        parts.append(f'<line class="grid" {ends}/>')
        parts.append(_text(LEFT - 4, y(share) + 4, f"{share:.0%}", "end"))
    parts += [
        _text(x(number), bottom + 14, mark, "middle")
        for number, mark in enumerate(marks)
    ]
    for kind, values in lines.items():
        points = " ".join(f"{x(n):.1f},{y(one):.1f}" for n, one in enumerate(values))
        parts.append(f'<polyline class="{kind}" points="{points}"/>')
    return parts


def _text(x: float, y: float, words: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(words)}</text>"
