"""Drawings of runs as SVG: estimated against measured, and errors in strips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Final

from profiles.units import DAY_S, HOUR_S

SIDE: Final = 560  # pixels of the scatter's square
_LEFT: Final = 56
_EDGE: Final = 12
_FOOT: Final = 36  # under the last row: numbers, and what they are
_BAND: Final = 0.1  # shaded: within 10 %
_STRIP: Final = 24  # pixels a strip is high
_WORDS: Final = 250  # pixels for the name of a strip
_SPAN: Final = 620  # pixels of the errors beside it
_WIDEST: Final = 0.5  # errors beyond lie on the edge
_DECADES: Final = 1.5  # beyond, powers of ten alone are marked
_LONGEST: Final = 34  # characters of a name
_LOWEST: Final = 320.0  # pixels of all lanes, at least
_CLOCK: Final = (("days", DAY_S), ("hours", HOUR_S), ("minutes", 60), ("seconds", 1))
GANTT_STYLE: Final = """
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.frame { fill: none; stroke: currentColor; opacity: .4; }
.grid { stroke: currentColor; }
"""
_GOLDEN: Final = 0.618034  # multiples of it fill [0, 1) evenly, however many
STYLE: Final = """
svg text { font: 11px system-ui, sans-serif; fill: #3c4657; }
.frame { fill: none; stroke: #8b95a7; } .grid { stroke: #e3e7ee; }
.even { stroke: #56627a; } .band { fill: #e7f1e4; } .median { stroke: #111;
  stroke-width: 2.5; }
circle { opacity: .6; }
.c0 { fill: #1f6fb4; } .c1 { fill: #d9761a; } .c2 { fill: #2d9a4b; }
.c3 { fill: #c33b3b; } .c4 { fill: #7c58b0; } .c5 { fill: #8a5a44; }
.c6 { fill: #c95fa6; } .c7 { fill: #6f7683; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A run: what was estimated and measured, in seconds; what it is, and its colour
    as a number from 0."""

    estimated_s: float
    measured_s: float
    words: str
    colour: int = 0

    @property
    def error(self) -> float:
        """Estimated over measured, less 1."""
        return self.estimated_s / self.measured_s - 1


def scatter(dots: Sequence[Dot], colours: Sequence[str] = ()) -> str:
    """Estimated over measured seconds, both axes logarithmic, one dot a run.

    *colours* names those of the dots, from 0, in a corner that no estimate comes near.
    """
    if not dots:
        return "<p>No run is compared.</p>"
    ends = [value for dot in dots for value in (dot.estimated_s, dot.measured_s)]
    low, high = math.log10(min(ends)) - 0.05, math.log10(max(ends)) + 0.05

    def along(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return SIDE * min(max(share, 0.0), 1.0)

    def place(measured_s: float, estimated_s: float) -> tuple[float, float]:
        return _LEFT + along(measured_s), _EDGE + SIDE - along(estimated_s)

    first, last = 10**low, 10**high
    above, below = 1 + _BAND, 1 - _BAND
    band = [place(first, first), place(first, first * above)]
    band += [place(last / above, last), place(last, last)]
    band += [place(last, last * below), place(first / below, first)]
    right, bottom = _LEFT + SIDE, _EDGE + SIDE
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in band)
    parts = [
        _rectangle("frame", _LEFT, _EDGE, SIDE, SIDE),
        f'<polygon class="band" points="{points}"/>',
        _line("even", *place(first, first), *place(last, last)),
    ]
    for value in _marks(first, last):
        x, y = place(value, value)
        parts += [
            _line("grid", x, _EDGE, x, bottom),
            _line("grid", _LEFT, y, right, y),
            _text(x, bottom + 15, f"{value:g}"),
            _text(_LEFT - 6, y + 4, f"{value:g}", anchor="end"),
        ]
    parts += [_circle(*place(dot.measured_s, dot.estimated_s), dot) for dot in dots]
    parts += [
        _text(_LEFT + SIDE / 2, bottom + 32, "measured seconds of a step"),
        _text(14, _EDGE + SIDE / 2, "estimated seconds", turned=True),
    ]
    for colour, words in enumerate(colours):
        y = _EDGE + 20 + 18 * colour
        parts += [
            f'<circle class="c{colour}" cx="{_LEFT + 16}" cy="{y - 4}" r="4"/>',
            _text(_LEFT + 26, y, words, anchor="start"),
        ]
    return _svg(right + _EDGE, bottom + _FOOT, parts)


def strips(groups: Mapping[str, Sequence[Dot]]) -> str:
    """The errors of each group on a line of its own, with its median.

    Dots are spread over the height of their strip.
    """
    bottom = _EDGE + _STRIP * len(groups)

    def across(error: float) -> float:
        inside = min(max(error, -_WIDEST), _WIDEST)
        return _WORDS + (inside + _WIDEST) / (2 * _WIDEST) * _SPAN

    wide = across(_BAND) - across(-_BAND)
    parts = [_rectangle("band", across(-_BAND), _EDGE, wide, bottom - _EDGE)]
    for percent in range(-50, 51, 10):
        x = across(percent / 100)
        parts += [
            _line("grid" if percent else "even", x, _EDGE, x, bottom),
            _text(x, bottom + 16, f"{percent:+d} %"),
        ]
    for row, (name, dots) in enumerate(groups.items()):
        top = _EDGE + row * _STRIP
        words = f"{_short(name)} ({len(dots)})"
        parts.append(_text(_WORDS - 8, top + 16, words, anchor="end"))
        parts += _strip(dots, top, across)
    return _svg(_WORDS + _SPAN + 2 * _EDGE, bottom + _FOOT, parts)


def gantt(bars: Sequence[tuple[str, int, int, float, float]], lanes: int) -> str:
    """Who has which lanes when: (name, first lane, last lane, start, end) in seconds; a
    name has one colour, and is written where there is room."""
    end_s = max(bar[4] for bar in bars)
    unit, scale = next(
        (unit, scale) for unit, scale in _CLOCK if end_s >= 2 * scale or scale == 1
    )
    high = min(26.0, max(_LOWEST / lanes, 2.0))  # pixels of a lane
    bottom, width = _EDGE + high * lanes, _WORDS + _SPAN - _LEFT
    colours = {name: n for n, name in enumerate(dict.fromkeys(bar[0] for bar in bars))}
    parts = [_rectangle("frame", _LEFT, _EDGE, width, bottom - _EDGE)]
    for name, first, last, start, end in bars:
        x, y = _LEFT + width * start / end_s, _EDGE + high * first
        wide, tall = width * (end - start) / end_s, high * (last - first + 1)
        hue = f"hsl({colours[name] * 360 * _GOLDEN % 360:.0f} 55% 68%)"
        when = f"{start / scale:.4g} to {end / scale:.4g} {unit}"
        told = f"<title>{escape(f'{name}: GPUs {first}-{last}, {when}')}</title>"
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
            f'style="fill:{hue}{";stroke:#fff" if wide > 4 else ""}">{told}</rect>'
        )
        if wide > 7 * len(name) and tall > 13:
            parts.append(
                f'<text x="{x + wide / 2:.1f}" y="{y + tall / 2 + 4:.1f}" '
                f'style="fill:#111;text-anchor:middle">{escape(name)}</text>'
            )
    for tenth in range(0, 11, 2):
        x = _LEFT + width * tenth / 10
        parts += [
            _line("grid", x, bottom, x, bottom + 4),
            _text(x, bottom + 17, f"{end_s / scale * tenth / 10:.3g}"),
        ]
    parts += [
        _text(_LEFT + width / 2, bottom + 34, unit),
        _text(_LEFT - 6, _EDGE + 10, "GPU 0", anchor="end"),
        _text(_LEFT - 6, bottom - 2, str(lanes - 1), anchor="end"),
    ]
    drawn = _svg(_LEFT + width + _EDGE, bottom + _FOOT + 6, parts)
    return f'<div class="scroll"><style>{GANTT_STYLE}</style>{drawn}</div>'


def key(colour: int, words: str) -> str:
    """An entry of a scatter's legend."""
    dot = f'<circle class="c{colour}" cx="5" cy="5" r="4"/>'
    return f"<li>{_svg(10, 10, [dot])}{escape(words)}</li>"


def _strip(
    dots: Sequence[Dot], top: float, across: Callable[[float], float]
) -> Iterator[str]:
    for number, dot in enumerate(dots):
        y = top + 4 + (_STRIP - 8) * (number * _GOLDEN % 1)
        yield _circle(across(dot.error), y, dot)
    x = across(median(dot.error for dot in dots))
    yield _line("median", x, top + 2, x, top + _STRIP - 2)


def _marks(low: float, high: float) -> list[float]:
    """Round values to mark between two: more of each power of ten if it is near.

    >>> _marks(0.3, 2.4)
    [0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0]
    >>> _marks(0.02, 30)
    [0.1, 1.0, 10.0]
    """
    wide = math.log10(high / low) > _DECADES
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    digits = (10,) if wide else (10, 15, 20, 30, 40, 50, 70)
    values = (float(f"{digit}e{power - 1}") for power in powers for digit in digits)
    return [value for value in values if low * (1 - 1e-9) <= value <= high]


def _circle(x: float, y: float, dot: Dot) -> str:
    told = (
        f"{dot.words}: {dot.estimated_s:.4g} s estimated, {dot.measured_s:.4g} s "
        f"measured, {dot.error:+.1%}"
    )
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="2.4"'
    return (
        f'<circle class="c{dot.colour}" {place}><title>{escape(told)}</title></circle>'
    )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{kind}" {ends}/>'


def _rectangle(kind: str, x: float, y: float, width: float, height: float) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size}/>'


def _text(
    x: float, y: float, words: str, *, anchor: str = "middle", turned: bool = False
) -> str:
    turn = " rotate(-90)" if turned else ""
    place = f'transform="translate({x:.1f} {y:.1f}){turn}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(words)}</text>"


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    return f'<svg {size} height="{height:.0f}" role="img">{"".join(parts)}</svg>'


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
