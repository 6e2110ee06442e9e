"""A price for each point of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from costmodel.sweep.axes import AXES, OF_TRAINING, Groups, points
from profiles.errors import Contradiction


class Shown(Protocol):
    """What a sweep has at a point: an estimate, of training or inference."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def document(self) -> dict[str, Any]: ...


Found = TypeVar("Found", bound=Shown)
Point = Mapping[str, Any]


def sweep(
    axes: Sequence[str],
    options: Sequence[Any],
    price: Callable[..., Found],
    *,
    known: Sequence[str] = AXES,
    groups: Groups = OF_TRAINING,
    refused: tuple[type[Exception], ...] = (Contradiction,),
) -> Iterator[tuple[Point, Found | str]]:
    """Each combination of the axes' values, with the *price* of the point and of
    *options* there, or why it is *refused*. Raises as `points`."""
    for point in points(axes, known, groups):
        try:
            yield point, price(point, *(at(point, one) for one in options))
        except refused as error:
            yield point, str(error)


def at(point: Point, options: Any) -> Any:
    """*options* with those of their fields that a point of the sweep gives."""
    names = {field.name for field in fields(options)}
    return replace(options, **{key: point[key] for key in names & point.keys()})
