"""Exact dynamic programming over a `ChoiceGraph` without limits: node by node.

A node is minimised away once for each choice of its neighbours, which then share a
table (Bertelè and Brioschi, Nonserial Dynamic Programming, 1972); the node whose table
is smallest goes first. A transformer block is nearly a chain: tables stay small, and
time is linear in the number of operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.sharding.choice_graph import ChoiceGraph, Chosen, Status
from planner.sharding.ilp import certified
from profiles.errors import Unsupported

Floats = NDArray[np.float64]
Table = tuple[tuple[str, ...], Floats]  # names of the axes, costs
MOST_ENTRIES = 20_000_000


def eliminate(graph: ChoiceGraph) -> Chosen:
    """The cheapest choice of *graph*.

    Raises Unsupported if the graph has limits or exclusions, or is so tangled that a
    table would not fit.
    """
    if graph.limits or graph.apart:
        raise Unsupported(
            "elimination knows no limits and no exclusions; the integer program does"
        )
    small = graph.merged
    sizes = {name: len(costs) for name, costs in small.nodes.items()}
    tables: list[Table] = [((name,), costs) for name, costs in small.nodes.items()]
    tables += [((one.source, one.target), one.costs) for one in small.edges]
    steps: list[tuple[str, Table]] = []
    left = set(sizes)
    while left:
        name = min(sorted(left), key=lambda one: _entries(one, tables, sizes))
        mine = [table for table in tables if name in table[0]]
        joint = _joined(name, mine, sizes)
        tables = [table for table in tables if name not in table[0]]
        tables.append((joint[0][1:], joint[1].min(axis=0)))
        steps.append((name, joint))
        left.remove(name)
    choice: dict[str, int] = {}
    for name, (names, costs) in reversed(steps):
        taken = tuple(choice[other] for other in names[1:])
        choice[name] = int(np.argmin(np.moveaxis(costs, 0, -1)[taken]))
    return certified(graph, choice, Status.OPTIMAL, 0.0)


def _around(name: str, tables: Iterable[Table]) -> list[str]:
    """The other nodes that share a table with *name*."""
    near = {other for names, _ in tables if name in names for other in names}
    return sorted(near - {name})


def _entries(name: str, tables: Iterable[Table], sizes: dict[str, int]) -> int:
    return prod(sizes[other] for other in _around(name, tables))


def _joined(name: str, tables: list[Table], sizes: dict[str, int]) -> Table:
    """The sum of *tables*, with *name* as its first axis."""
    names = (name, *_around(name, tables))
    shape = tuple(sizes[one] for one in names)
    if prod(shape) > MOST_ENTRIES:
        raise Unsupported(
            f"{name!r} has {prod(shape):,} joint options with its neighbours, more "
            f"than {MOST_ENTRIES:,}; the integer program handles tangled graphs"
        )
    total = np.zeros(shape)
    for axes, costs in tables:
        order = sorted(range(len(axes)), key=lambda i: names.index(axes[i]))
        wide = [sizes[one] if one in axes else 1 for one in names]
        total = total + costs.transpose(order).reshape(wide)
    return names, total
