"""A cluster with another device, other links or another price: what if?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from profiles.errors import Contradiction, InvalidSpec
from profiles.hardware import Cluster, Figure, device

_NUMBER: Final = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)")
_SOURCE: Final = "asked for"
RATES: Final = ("GB/s", "Gbit/s", "TB/s")
UNITS: Final[Mapping[str, tuple[str, ...]]] = {  # the first where none is written
    "intra_node_bandwidth": RATES,
    "inter_node_bandwidth": RATES,
    "intra_node_latency": ("us",),
    "inter_node_latency": ("us",),
    "device_price": ("USD/h",),
}
CLUSTER_AXES: Final = ("device", *UNITS)


def parse_figure(name: str, text: str) -> Figure:
    """A value of one of `UNITS`, with its unit.

    >>> parse_figure("inter_node_bandwidth", "400Gbit/s").si
    50000000000.0

    Raises InvalidSpec.
    """
    units = UNITS[name]
    match = _NUMBER.fullmatch(text)
    if match is None or (match[2] or units[0]) not in units:
        raise InvalidSpec(
            f"{name.replace('_', '-')}={text!r}: write a number in {units[0]}"
            + (f", or with one of {', '.join(units)}" if len(units) > 1 else "")
        )
    figure = Figure(value=float(match[1]), unit=match[2] or units[0], source=_SOURCE)
    if not figure.value:
        raise InvalidSpec(f"{name.replace('_', '-')}={text!r}: give more than 0")
    return figure


def changed(cluster: Cluster, point: Mapping[str, Any]) -> Cluster:
    """*cluster* with what a *point* says of it: values of `CLUSTER_AXES`, figures or
    as written; other names are left alone.

    Raises UnknownName for a device, InvalidSpec for a figure, Contradiction for links
    that it has not, Unsupported for a cluster of several islands.
    """
    asked = {name: point[name] for name in CLUSTER_AXES if name in point}
    for name, value in asked.items():
        if name in UNITS and not isinstance(value, Figure):
            value = parse_figure(name, str(value))
        cluster = _CHANGES[name](cluster, value)
    return cluster


def _on(name: str, cluster: Cluster) -> Cluster:
    """Another device in the same nodes, whose price and power are no longer known."""
    made = replace(cluster.island, device=device(name), price=None, power=None)
    return replace(cluster, name=f"{cluster.name} ({name})", islands=(made,))


def _linked(place: int, field: str, cluster: Cluster, figure: Figure) -> Cluster:
    """The innermost or the outermost links at another rate or latency."""
    levels = list(cluster.island.levels)
    if place == 0 and len(levels) == 1:
        raise Contradiction(
            f"cluster {cluster.name!r} has no links inside its nodes to change"
        )
    level = levels[place]
    if field == "bandwidth":
        levels[place] = replace(level, bandwidth=figure)
    else:
        levels[place] = replace(level, latency=figure)
    made = replace(cluster.island, levels=tuple(levels))
    return replace(cluster, islands=(made,))


def _priced(cluster: Cluster, figure: Figure) -> Cluster:
    of_node = figure.value * cluster.island.devices_per_node
    made = replace(cluster.island, price=replace(figure, value=of_node))
    return replace(cluster, islands=(made,))


_CHANGES: Final[Mapping[str, Callable[[Cluster, Any], Cluster]]] = {
    "device": lambda cluster, name: _on(name, cluster),
    "intra_node_bandwidth": lambda c, figure: _linked(0, "bandwidth", c, figure),
    "inter_node_bandwidth": lambda c, figure: _linked(-1, "bandwidth", c, figure),
    "intra_node_latency": lambda c, figure: _linked(0, "latency", c, figure),
    "inter_node_latency": lambda c, figure: _linked(-1, "latency", c, figure),
    "device_price": _priced,
}
