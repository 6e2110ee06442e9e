"""Neighbouring layers as one: what is cut over islands where layers are very many.

Tables of stages take the square of the layers. Cuts between groups of them are some of
all cuts, and the bound then speaks of those alone.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

import numpy as np

from planner.stage_kinds import Array
from planner.stage_layers import Option
from planner.stage_passes import Passes

MOST_CUT: Final = 128  # layers that are cut one by one over islands
GROUPS: Final = 64  # of more


def group_size(layers: int) -> int:
    """How many neighbours are one: 1 of layers that are not too many."""
    return 1 if layers <= MOST_CUT else ceil(layers / GROUPS)


def grouped_option(option: Option, size: int) -> Option:
    """*option* of groups of so many layers."""
    starts = _starts(option.seconds, size)
    return replace(
        option,
        seconds=np.add.reduceat(option.seconds, starts),
        saved_bytes=np.add.reduceat(option.saved_bytes, starts),
        state_bytes=np.add.reduceat(option.state_bytes, starts),
        working_bytes=np.maximum.reduceat(option.working_bytes, starts),
    )


def grouped_passes(passes: Passes, size: int) -> Passes:
    """*passes* of groups of so many layers."""
    starts = _starts(passes.forward_s, size)
    return replace(
        passes,
        forward_s=np.add.reduceat(passes.forward_s, starts),
        backward_s=np.add.reduceat(passes.backward_s, starts),
        reduce_s=np.add.reduceat(passes.reduce_s, starts),
        step_s=np.add.reduceat(passes.step_s, starts),
        gather_s=np.add.reduceat(passes.gather_s, starts),
        messages=np.add.reduceat(passes.messages, starts),
        layers=np.add.reduceat(np.ones(len(passes.forward_s)), starts),
    )


def _starts(layers: Array, size: int) -> Array:
    return np.arange(0, len(layers), size)
