"""Parameters, gradients, states and activations on host and drive."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from runtime.offload.activations import OnDrive, Tiers
    from runtime.offload.disk_optimizer import DiskOptimizer
    from runtime.offload.host import Away, Host, HostGradients, HostOptimizer
    from runtime.offload.policy import HERE, StatesAway, level, require_drive

__all__ = [
    "HERE",
    "Away",
    "DiskOptimizer",
    "Host",
    "HostGradients",
    "HostOptimizer",
    "OnDrive",
    "StatesAway",
    "Tiers",
    "level",
    "require_drive",
]

__getattr__ = lazily(__name__, __file__)
