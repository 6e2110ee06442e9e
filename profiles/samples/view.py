"""Samples for a terminal: the machine, operators by kind, collectives by bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import prod
from statistics import median
from typing import TYPE_CHECKING

from profiles.samples.table import CollectiveKey, OperatorKey, Sample, Samples
from profiles.units import GB, GFLOPS, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

_FIRST = ("device", "host cpu", "software", "ranks", "date", "noise", "command")


def sample_view(samples: Samples, *, details: bool = False) -> Group:
    """What `profile` shows: a sentence, the machine and, with *details*, its
    samples."""
    from rich.console import Group
    from rich.text import Text

    operators, collectives = len(samples.operators), len(samples.collectives)
    sentence = Text(
        f"{operators:,} operators and {collectives:,} messages between ranks were "
        "measured; give the file to plan, simulate and execute with --profile.",
        style="bold",
    )
    parts: list[RenderableType] = [sentence, _machine(samples)]
    for table in (_operators(samples), _collectives(samples)) if details else ():
        if table.row_count:
            parts += [Text(), table]
    return Group(*parts)


def _machine(samples: Samples) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    named = [name for name in _FIRST if name in samples.machine]
    for name in named:
        table.add_row(name, samples.machine[name])
    if samples.cluster is not None:
        table.add_row("cluster", _cluster_words(samples))
    return table


def _cluster_words(samples: Samples) -> str:
    assert samples.cluster is not None, "who has no cluster shows none"
    island = samples.cluster.island
    device = island.device
    count = f"{island.devices_per_node}"
    if island.nodes != 1:
        count = f"{island.nodes} nodes of {count}"
    peaks = ", ".join(
        f"{name} {figure.si / GFLOPS:.4g} GFLOP/s"
        for name, figure in device.peak.items()
    )
    spoken = island.levels if island.devices_per_node > 1 else island.levels[-1:]
    links = ", ".join(
        f"{level.kind} {level.bytes_per_s / GB:.3g} GB/s and "
        f"{format_seconds(level.latency_s)}"
        for level in spoken
    )
    return (
        f"{samples.cluster.name}: {count} × {device.name}, {peaks}, "
        f"memory {format_bytes(device.capacity_bytes)} at "
        f"{device.memory_bytes_per_s / GB:.3g} GB/s, {links}"
    )


def _operators(samples: Samples) -> Table:
    grouped: dict[tuple[str, str, str], list[tuple[OperatorKey, Sample]]] = defaultdict(
        list
    )
    for key, sample in samples.operators.items():
        grouped[key.kind, key.direction, key.precision].append((key, sample))
    table = _table(
        "operator", "pass", "precision", "shapes", "seconds", "best", "spread"
    )
    for (kind, direction, precision), rows in grouped.items():
        seconds = [sample.seconds for _, sample in rows]
        table.add_row(
            kind,
            direction,
            precision,
            str(len(rows)),
            _between(min(seconds), max(seconds)),
            _best(kind, rows),
            _spread(sample for _, sample in rows),
        )
    return table


def _best(kind: str, rows: list[tuple[OperatorKey, Sample]]) -> str:
    """The best rate of a product: 2·m·n·k over seconds."""
    if kind != "matmul":
        return ""
    best = max(2 * prod(key.shape) / sample.seconds for key, sample in rows)
    return f"{best / GFLOPS:,.4g} GFLOP/s"


def _collectives(samples: Samples) -> Table:
    grouped: dict[
        tuple[str, tuple[int, ...], int, str], list[tuple[CollectiveKey, Sample]]
    ] = defaultdict(list)
    for key, sample in samples.collectives.items():
        group = (key.collective, key.ranks, key.groups_at_once, key.fabric)
        grouped[group].append((key, sample))
    table = _table(
        "collective", "ranks", "at once", "fabric", "smallest", "largest", "", "spread"
    )
    for (name, ranks, groups, fabric), rows in grouped.items():
        rows.sort(key=lambda row: row[0].size_bytes)
        (_, least), (last, most) = rows[0], rows[-1]
        table.add_row(
            name,
            "×".join(map(str, ranks)),
            str(groups),
            fabric,
            f"{format_bytes(rows[0][0].size_bytes)} {format_seconds(least.seconds)}",
            f"{format_bytes(last.size_bytes)} {format_seconds(most.seconds)}",
            f"{last.size_bytes / most.seconds / GB:.3g} GB/s",
            _spread(sample for _, sample in rows),
        )
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 4 else "right")
    return table


def _between(least: float, most: float) -> str:
    return f"{format_seconds(least)} – {format_seconds(most)}"


def _spread(samples: Iterable[Sample]) -> str:
    return f"{median(sample.spread for sample in samples):.0%}"
