"""The explorer: a page on loopback whose sliders are answered at once."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from planner.explorer.answers import Answers
    from planner.explorer.server import PORT, Server, serve
    from planner.explorer.state import FIELDS, Catalogue, state_of

__all__, __getattr__ = public(__name__, __file__)
