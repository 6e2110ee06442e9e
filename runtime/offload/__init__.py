"""Parameters, gradients, states and activations on host and drive."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.offload.activations import OnDrive, Tiers
    from runtime.offload.disk_optimizer import DiskOptimizer
    from runtime.offload.host import Host, HostGradients, HostOptimizer, OnHost
    from runtime.offload.policy import HERE, StateOffload, level, require_drive

__all__, __getattr__ = public(__name__, __file__)
