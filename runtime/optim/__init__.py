"""The optimizer's step: clipping, loss scale, learning rate."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.optim.lateness import (
        REMEDIES,
        Lateness,
        rate_factor,
        require_remedy,
        spike_factors,
    )
    from runtime.optim.lr_schedule import KINDS, LearningRate
    from runtime.optim.one_bit_adam import OneBitAdam
    from runtime.optim.optimizer import (
        Leaf,
        LossScale,
        Make,
        Optimizer,
        Piece,
        Settings,
        clip_factor,
        global_norm,
        local,
        loss_scale,
        made_of,
        parts,
        scale,
    )
    from runtime.optim.stale_gradients import Remedy
    from runtime.optim.undo import require_undoable, undo
    from runtime.optim.weight_versions import WeightVersions

__all__, __getattr__ = public(__name__, __file__)
