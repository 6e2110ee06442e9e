"""Each operator's sharding for a terminal: what is split where, and what is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from costmodel.redistribution import Step
from planner.choice_graph import Status
from planner.shardings import LayoutShardings
from profiles.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group


def shardings_view(found: LayoutShardings) -> Group:
    """A table with a line for each operator, under what it costs and how sure it is."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), header_style="bold", show_edge=False)
    table.add_column("operator", no_wrap=True)
    for axis in found.problem.axes:
        table.add_column(f"over {axis.name} {axis.size}", no_wrap=True)
    for name in ("forward", "backward", "once a step"):
        table.add_column(name, overflow="fold")
    for name, loops in found.best.loops.items():
        sent = found.best.traffic[name]
        passes = (sent.forward, sent.backward, sent.step)
        table.add_row(name, *loops, *(sent_words(steps) for steps in passes))
    return Group(Text(headline(found)), table)


def headline(found: LayoutShardings) -> str:
    """Seconds and bytes of the block, the proof, and what the layout's own costs."""
    best, problem = found.best, found.problem
    mesh = " × ".join(f"{axis.name} {axis.size}" for axis in problem.axes)
    proof = (
        "optimal" if best.status is Status.OPTIMAL else f"within {best.gap:.1%} of best"
    )
    words = (
        f"operators of {problem.block.name!r} on {mesh}, by integer program ({proof}): "
        f"{format_seconds(best.value)} a micro-batch in {format_bytes(best.peak_bytes)}"
    )
    if found.own_s is None or found.own_bytes is None:
        return words
    own = f"{format_seconds(found.own_s)} in {format_bytes(found.own_bytes)}"
    return f"{words}; the layout's own sharding: {own}"


def sent_words(steps: Iterable[Step]) -> str:
    """Collectives in words.

    >>> from costmodel.mesh_axes import MeshAxis
    >>> tp = MeshAxis(name="tp", size=8)
    >>> sent_words([Step(kind="all_reduce", axis=tp, size_bytes=2.0**21)])
    'all-reduce tp 2.00 MiB'
    """
    return ", ".join(
        f"{one.kind.replace('_', '-')} {one.axis.name} {format_bytes(one.size_bytes)}"
        for one in steps
    )
