"""What the virtual stages of a pipeline cost: the input of the timeline."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InvalidSpec

FloatArray = NDArray[np.float64]
_BY_RANK: Final = ("step_s", "gather_s", "static_bytes")
_OF_ALL: Final = (
    "buckets",
    "overlap_reduce",
    "synchronised_step",
    "turns",
    "messages",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCosts:
    """Seconds and bytes of one micro-batch, by virtual stage in model order.

    `send_forward_s[s]` carries activations from stage s to s + 1, `send_backward_s[s]`
    gradients from s to s − 1; between stages of one rank they are not used.
    `saved_bytes` are taken as a forward starts and freed as its backward ends, the
    transient bytes are alive only during the pass. Where a schedule splits the
    backward, W takes `weight_s` of `backward_s` and I the rest, and `weight_bytes` are
    alive from I to W; `hidden_s` is what a backward saves that runs at once with a
    forward. Left out, these are 0. `reduce_s` is the gradient
    reduction of a stage, done in `buckets` equal pieces as the last backward makes
    them, or after the rank's last backward unless `overlap_reduce`.

    `turns` ranks share a core (`costmodel.turns`); where they do, nothing is hidden, so
    that `overlap_reduce` does not go with it. The share *messages* of all passes is no
    faster where others wait.

    By pipeline rank: the optimizer's `step_s`, the `gather_s` of updated parameters
    after it (ZeRO-1), and `static_bytes` that are always alive. With
    `synchronised_step` (a global gradient norm) no rank steps before all have reduced.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    send_forward_s: FloatArray
    send_backward_s: FloatArray
    saved_bytes: FloatArray
    transient_forward_bytes: FloatArray
    transient_backward_bytes: FloatArray
    reduce_s: FloatArray
    step_s: FloatArray
    gather_s: FloatArray
    static_bytes: FloatArray
    first_forward_extra_s: FloatArray | None = None  # on top, of micro-batch 0
    last_backward_extra_s: FloatArray | None = None  # of the stage's last one
    weight_s: FloatArray | None = None
    weight_bytes: FloatArray | None = None
    hidden_s: FloatArray | None = None
    buckets: NDArray[np.int64] | int = 1  # of each stage, or of all
    overlap_reduce: bool = True
    synchronised_step: bool = True
    turns: float = 1.0
    messages: float = 0.0

    def optional(self, name: str) -> FloatArray:
        """One that may be left out, by virtual stage."""
        given: FloatArray | None = getattr(self, name)
        return np.zeros_like(self.forward_s) if given is None else given


_BY_STAGE: Final = tuple(
    item.name for item in fields(StageCosts) if item.name not in (*_BY_RANK, *_OF_ALL)
)


def require_costs(costs: StageCosts, pp: int, stages: int) -> None:
    """Raise InvalidSpec unless *costs* are those of *stages* stages on *pp* ranks."""
    _require_length(costs, _BY_STAGE, stages, "virtual stages")
    _require_length(costs, _BY_RANK, pp, "pipeline ranks")
    if np.min(costs.buckets) < 1:
        raise InvalidSpec(f"buckets={costs.buckets}; a reduction has at least one")
    if costs.turns < 1 or (costs.turns > 1 and costs.overlap_reduce):
        raise InvalidSpec(
            f"turns={costs.turns}, overlap_reduce={costs.overlap_reduce}; at least one "
            "rank has a core, and where more share it nothing is hidden"
        )
    if not 0 <= costs.messages <= 1:
        raise InvalidSpec(f"messages={costs.messages}; it is a share, 0 to 1")


def _require_length(
    costs: StageCosts, names: tuple[str, ...], length: int, what: str
) -> None:
    wanted = (length,)
    for name in names:
        given = getattr(costs, name)
        if given is not None and given.shape != wanted:
            raise InvalidSpec(
                f"{name} has the shape {given.shape}; this pipeline needs one value "
                f"for each of its {length} {what}"
            )
