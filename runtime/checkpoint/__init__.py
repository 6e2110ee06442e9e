"""State saved, read and resharded."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.checkpoint.directory import latest, step_of

__all__, __getattr__ = public(__name__, __file__)
