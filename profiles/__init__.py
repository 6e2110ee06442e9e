"""Facts: models, devices, clusters and measured samples. No decision is in them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiles.api import load_cluster, load_model

__version__ = "0.1.0"
__all__ = ["load_cluster", "load_model"]
_HOMES = {"load_cluster": "profiles.api", "load_model": "profiles.api"}


def __getattr__(name: str) -> Any:
    """The public names; what they need is imported when one is first used."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
