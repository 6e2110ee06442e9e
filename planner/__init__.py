"""Choices: which layout to take, and the proof that no other is better."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from planner.api import plan

__all__ = ["plan"]

__getattr__ = lazily(__name__, __file__)
