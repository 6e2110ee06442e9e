"""`parallelize`: a layout applied to a module of the user's own."""

from runtime.api.entry import (
    clip_gradients,
    data_rank,
    layout_of,
    optimizer,
    parallelize,
)

__all__ = [
    "clip_gradients",
    "data_rank",
    "layout_of",
    "optimizer",
    "parallelize",
]
