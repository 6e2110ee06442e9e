"""A line of virtual stages: their passes, and the transfers between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """Stages in model order, [..., stages], with the transfers between them.

    `down_s[s]` follows the forward of stage s, `up_s[s]` the backward of stage s + 1;
    both are 0 for the last stage.
    """

    forward_s: Array
    backward_s: Array
    down_s: Array
    up_s: Array

    @property
    def before_s(self) -> Array:
        """From the first stage's forward to the start of each stage's."""
        return exclusive_sum(self.forward_s + self.down_s)

    @property
    def after_s(self) -> Array:
        """From the end of each stage's backward to the end of the first stage's."""
        return exclusive_sum(self.backward_s + self.up_s)


def line(
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    send_forward_s: ArrayLike,
    send_backward_s: ArrayLike,
) -> Line:
    """A line with transfers as `stage_costs.StageCosts` numbers them; broadcasts."""
    given = (forward_s, backward_s, send_forward_s, send_backward_s)
    forward, backward, down, up = np.broadcast_arrays(*given)
    none = np.zeros((*forward.shape[:-1], 1))
    return Line(
        forward_s=forward,
        backward_s=backward,
        down_s=np.concatenate((down[..., :-1], none), axis=-1),
        up_s=np.concatenate((up[..., 1:], none), axis=-1),
    )


def exclusive_sum(values: Array) -> Array:
    """Along the last axis, the sum of what comes before each."""
    return np.asarray(values.cumsum(axis=-1) - values)
