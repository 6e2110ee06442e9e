"""From which width on two CPU ranks are faster than one, measured and predicted.

    python -m benchmarks.mlp_width --profile samples.json [--rows 64 512]

A layer is two products of one width with a GELU after each (`plain_mlp`): whole on
each of the ranks, and split over them by columns and rows. It is timed in plain
PyTorch over gloo (`mlp_width_worker`), and priced from a profile of this machine, which
need not have seen such shapes (`profile --nproc 2 --out samples.json`). n* is the width
at which both take as long (Castelló et al., EuroMPI 2019, study where that is). --page
FILE puts the table between the page's markers, --keep FILE writes every figure.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path

from benchmarks.fit.layer_price import layer_price
from benchmarks.mlp_width_worker import Request
from benchmarks.pages import put
from benchmarks.plain_mlp import plain_mlp
from costmodel.machine.assembly import Machine, machine
from profiles.errors import MeshwrightError
from profiles.files import read_json, write_text
from profiles.samples.files import read_samples
from profiles.units import MS
from runtime.launch.launcher import Program, launch

RANKS = 2
WIDTHS = (128, 256, 384, 512, 768, 1024, 1536)
ROWS = (64, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Seconds of a layer's passes of so many rows: whole, and split."""

    rows: int
    width: int
    whole_s: float
    split_s: float


def measured(wish: argparse.Namespace) -> list[Point]:
    """Every layer, timed."""
    with tempfile.TemporaryDirectory(prefix="meshwright-") as scratch:
        asked, result = Path(scratch, "request.json"), Path(scratch, "result.json")
        Request(
            widths=tuple(wish.widths), rows=tuple(wish.rows), result=str(result)
        ).write(asked)
        worker = Program(arguments=[str(asked)], module="benchmarks.mlp_width_worker")
        launch(worker, nproc=RANKS)
        found = read_json(result, what="the times")
    assert isinstance(found, list)
    return [
        Point(rows=rows, width=width, whole_s=whole_s, split_s=split_s)
        for rows, width, whole_s, split_s in found
    ]


def priced(on: Machine, rows: int, width: int) -> Point:
    """The same layer by its price."""
    whole_s, split_s = (
        float(found.forward_s + found.backward_s)
        for found in (
            layer_price(
                plain_mlp(width, 2, "gelu"),
                on.running(RANKS),
                "fp32",
                seq_len=1,
                micro_batch=rows,
                tp=tp,
            )
            for tp in (1, RANKS)
        )
    )
    return Point(rows=rows, width=width, whole_s=whole_s, split_s=split_s)


def crossover(points: Sequence[Point]) -> float | None:
    """The width from which on splitting is faster, by a line through the two points
    around it (in logarithms); None where it always is, or never.

    >>> some = [Point(rows=1, width=w, whole_s=w * w, split_s=w * w / 2 + 32)
    ...         for w in (2, 4, 8, 16)]
    >>> round(crossover(some), 6)
    8.0
    """
    ordered = sorted(points, key=lambda one: one.width)
    gains = [log(one.whole_s / one.split_s) for one in ordered]
    slower = [number for number, gain in enumerate(gains) if gain < 0]
    if not slower or slower[-1] + 1 == len(ordered):
        return None
    last = slower[-1]
    before, after = ordered[last].width, ordered[last + 1].width
    share = gains[last] / (gains[last] - gains[last + 1])
    return float(before * (after / before) ** share)


def table(found: Sequence[Point], price: Callable[[int, int], Point]) -> Iterator[str]:
    """One row a layer, and one for n*, as Markdown."""
    yield "| rows | width | whole | priced | split | priced | gain | priced |"
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for rows in sorted({one.rows for one in found}):
        here = [one for one in found if one.rows == rows]
        told = [price(rows, one.width) for one in here]
        for one, other in zip(here, told, strict=True):
            yield (
                f"| {rows} | {one.width} | {_ms(one.whole_s)} | {_ms(other.whole_s)} "
                f"| {_ms(one.split_s)} | {_ms(other.split_s)} "
                f"| {one.whole_s / one.split_s:.2f} "
                f"| {other.whole_s / other.split_s:.2f} |"
            )
        yield f"| {rows} | **n\\*** | | | | | {_width(here)} | {_width(told)} |"


def _ms(seconds: float) -> str:
    return f"{seconds / MS:.2f} ms"


def _width(points: Sequence[Point]) -> str:
    found = crossover(points)
    return "none here" if found is None else f"{found:.0f}"


def _rows(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number >= 1")
    return int(text)


def _even(text: str) -> int:
    if not text.isdecimal() or int(text) < 2 or int(text) % 2:
        raise argparse.ArgumentTypeError(f"{text}: must be even (two ranks share it)")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--rows", type=_rows, nargs="+", default=ROWS)
    parser.add_argument("--widths", type=_even, nargs="+", default=WIDTHS)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--page", type=Path)
    wish = parser.parse_args()
    try:
        samples = read_samples(wish.profile)
    except MeshwrightError as error:
        parser.error(str(error))
    assert samples.cluster is not None, "a profile says what it was taken on"
    on = machine(samples.cluster, samples=samples)
    found = measured(wish)
    command = f"python -m benchmarks.mlp_width {shlex.join(sys.argv[1:])}"
    lines = table(found, lambda rows, width: priced(on, rows, width))
    text = f"`{command}`: {on.device.name}\n\n" + "\n".join(lines)
    print(text)
    if wish.page is not None:
        put(wish.page, "widths", f"\n{text}\n\n")
    if wish.keep is not None:
        document = {"command": command, "layers": [asdict(one) for one in found]}
        write_text(wish.keep, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
