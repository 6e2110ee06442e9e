"""Parameters, gradients, states and activations on host and drive."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.offload.activations import OnDrive, Tiers
    from runtime.offload.capacity import require_drive
    from runtime.offload.disk_optimizer import DiskOptimizer
    from runtime.offload.gradients import HostGradients
    from runtime.offload.host_copy import Away, Host
    from runtime.offload.host_optimizer import HostOptimizer
    from runtime.offload.policy import HERE, StatesAway, level

__all__, __getattr__ = public(__name__, __file__)
