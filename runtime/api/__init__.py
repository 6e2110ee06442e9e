"""`parallelize`: a layout applied to a user's own module."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.api.entry import (
        clip_gradients,
        data_rank,
        layout_of,
        optimizer,
        parallelize,
    )

__all__, __getattr__ = public(__name__, __file__)
