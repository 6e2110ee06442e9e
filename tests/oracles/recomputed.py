"""Which operators of a layer run once more in its backward when it is carried out.

A layer that is made again whole ends where its backward has all it asks for, unless the
next layer of its segment is made of what it makes. What is recomputed by name is made
when backward asks for it, of what is there or is made first.
"""

from __future__ import annotations

from collections.abc import Collection

from costmodel.layout.retention import CORE, EVERYTHING
from costmodel.stages.block_cost import recomputed_operators
from profiles.models.graph import Block
from profiles.models.graph import Kind as OperatorKind


def made_again(
    block: Block, wanted: frozenset[str], stops_early: bool
) -> Collection[str]:
    """Operators of *block* whose forward runs again where the tensors *wanted* are
    recomputed; of a whole layer all, or with *stops_early* as far as is needed."""
    if EVERYTHING in wanted:
        whole = frozenset((EVERYTHING,))
        return recomputed_operators(block, whole, stops_early=stops_early)
    saved = {item.name for one in block.operators for item in one.saves}
    asked, again = wanted & saved, set()
    for one in reversed(block.operators):
        core = one.kind is OperatorKind.ATTENTION and CORE in wanted
        if one.output.name in asked or core:
            again.add(one.name)
            for item in one.inputs:
                if item.name in wanted or item.name not in saved:
                    asked |= {item.name}
    return again
