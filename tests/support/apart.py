"""How far one training is from another: tensor by tensor, and over all together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isnan
from typing import Any, NamedTuple


class Distance(NamedTuple):
    """Squared L2 norms: of the difference, and of what is wanted."""

    away: float
    size: float

    @property
    def relative(self) -> float:
        """Relative L2; 0 of what should be zero and is."""
        if not self.away:
            return 0.0
        return (self.away / self.size) ** 0.5 if self.size else inf


Distances = Mapping[str, Distance]


def distances(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Distances:
    """Of each tensor that *found* has; all of them must be wanted."""
    return {name: _between(one, wanted[name]) for name, one in found.items()}


def _between(found: Any, wanted: Any) -> Distance:
    away = float(((found - wanted).double() ** 2).sum())
    return Distance(inf if isnan(away) else away, float((wanted.double() ** 2).sum()))


def farthest(ranks: Sequence[Distances]) -> dict[str, Distance]:
    """Of each tensor the copy that is farthest away, where ranks hold several."""
    found: dict[str, Distance] = {}
    for rank in ranks:
        for name, one in rank.items():
            found[name] = max(found.get(name, one), one)
    return found


def together(found: Iterable[Distance]) -> float:
    """Relative L2 distance over all tensors together."""
    return Distance(*map(sum, zip(*found, strict=True))).relative


def worst(found: Distances) -> tuple[float, str]:
    """The largest relative L2 distance of a tensor by itself, and which one it is."""
    return max((one.relative, name) for name, one in found.items())


def largest(values: Iterable[float]) -> float:
    """The largest of some distances; infinite where one is no number."""
    return max(inf if isnan(value) else value for value in values)


def apart(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Relative L2 distance over all tensors that are wanted together."""
    return together(distances({name: found[name] for name in wanted}, wanted).values())
