"""What a sweep goes over: the options of a question and of a layout, and the cluster's
devices and links; each value is checked as its option is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from math import prod
from typing import Any, Final

from costmodel.options import Pins, layout_options
from costmodel.sweep.clusters import CLUSTER_AXES, UNITS, parse_figure
from profiles.commandline import JobOptions, from_keywords, job_options
from profiles.errors import Contradiction, InvalidSpec, UnknownName
from profiles.hardware import device

MOST_POINTS: Final = 10_000
Groups = Mapping[type, Callable[..., Any]]
OF_TRAINING: Final[Groups] = {JobOptions: job_options, Pins: layout_options}
_OPTIONS: Final = tuple(one.name for into in (JobOptions, Pins) for one in fields(into))
AXES: Final = tuple(
    name.replace("_", "-") for name in (*_OPTIONS, *CLUSTER_AXES) if name != "profile"
)


def parse_axis(
    text: str, known: Sequence[str] = AXES, groups: Groups = OF_TRAINING
) -> tuple[str, tuple[Any, ...]]:
    """An axis and its values as written, with commas between; or semicolons, where
    values have commas in them.

    >>> parse_axis("micro-batch=1,2")
    ('micro_batch', (1, 2))
    >>> parse_axis("offload=none;optimizer,activations=0.5")
    ('offload', ('none', 'optimizer,activations=0.5'))

    Raises InvalidSpec and UnknownName.
    """
    axis, equals, values = text.partition("=")
    if not equals or not values:
        raise InvalidSpec(f"--sweep {text!r}: write AXIS=V1,V2, such as tp=1,2,4")
    if axis.replace("_", "-") not in known:
        raise UnknownName("sweep axis", axis, known)
    name, between = axis.replace("-", "_"), ";" if ";" in values else ","
    parts = [part.strip() for part in values.split(between)]
    return name, tuple(_value(name, part, groups) for part in parts)


def _value(name: str, text: str, groups: Groups) -> Any:
    """Raises InvalidSpec, or UnknownName for a device."""
    if name == "device":
        return device(text).name
    written = f"--sweep {name.replace('_', '-')}={text!r}"
    try:
        if name in UNITS:
            parse_figure(name, text)
            return float(text) if text.replace(".", "", 1).isdecimal() else text
        into = next(one for one in groups if name in _names(one))
        switches = {
            one.name for one in fields(into) if one.metadata.get("switch", False)
        }
        if name in switches and text not in ("on", "off"):
            raise InvalidSpec("write on or off")
        value: Any = text == "on" if name in switches else text
        (found,) = from_keywords({name: value}, {into: groups[into]})
    except InvalidSpec as error:
        said = str(error).removeprefix(f"{name}=").removeprefix(f"{text}: ")
        raise InvalidSpec(f"{written}: {said}") from None
    return getattr(found, name)


def _names(into: type) -> set[str]:
    return {one.name for one in fields(into)}


def points(
    axes: Sequence[str], known: Sequence[str] = AXES, groups: Groups = OF_TRAINING
) -> Iterator[dict[str, Any]]:
    """Each combination of the values of *axes*, which are among those *known*.

    Raises InvalidSpec for more than 10,000 of them, and what `parse_axis` does.
    """
    named = dict(parse_axis(text, known, groups) for text in axes)
    if len(named) < len(axes):
        raise Contradiction("--sweep names one axis twice; list its values together")
    count = prod(map(len, named.values()))
    if count > MOST_POINTS:
        raise InvalidSpec(f"--sweep has {count} combinations, most {MOST_POINTS}")
    for values in product(*named.values()):
        yield dict(zip(named, values, strict=True))


def point_words(point: Mapping[str, Any]) -> str:
    """A point as options would say it.

    >>> point_words({"micro_batch": 2, "sequence_parallel": True})
    'micro-batch=2 sequence-parallel=on'
    """
    return " ".join(
        f"{name.replace('_', '-')}={value_words(value)}"
        for name, value in point.items()
    )


def value_words(value: Any) -> str:
    """A value as it is written."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
