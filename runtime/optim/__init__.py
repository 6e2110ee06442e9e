"""The optimizer's step: clipping, loss scale, learning rate."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.optim.grad_norm import Piece, clip_factor, global_norm, parts, scale
    from runtime.optim.loss_scaling import LossScale, loss_scale
    from runtime.optim.lr_schedule import KINDS, LearningRate
    from runtime.optim.optimizer import Leaf, Make, Optimizer, Settings, local, made_of

__all__, __getattr__ = public(__name__, __file__)
