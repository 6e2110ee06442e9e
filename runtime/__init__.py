"""Deeds: a layout carried out by PyTorch on real devices. Command: `execute`."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from runtime.api import parallelize

__all__ = ["parallelize"]

__getattr__ = lazily(__name__, __file__)
