"""Operator graphs of models of all families."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.models.families.registry import model_graph
    from profiles.models.families.traced import remember, remembered, traced_graph

__all__, __getattr__ = public(__name__, __file__)
