"""Sweeps: a price for each value of layout options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import prod
from typing import Any, Final, Protocol, TypeVar

from costmodel.simulation import Estimate
from profiles.commandline import console, emit_json, warn
from profiles.errors import Contradiction, InvalidSpec, UnknownName
from profiles.units import format_bytes, format_seconds

MOST_POINTS = 10_000
_JOB_AXES = ("gpus", "seq_len", "global_batch")
_WHOLE = (
    *_JOB_AXES,
    *("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch", "micro_batches"),
    *("virtual_stages", "zero", "zero_group", "zero_hpz_partition_size"),
    *("recompute_layers", "first_stage_layers", "last_stage_layers"),
)
_NAMES = ("schedule", "cp_kind", "recompute", "precision")
_FLAGS = (
    *("sequence_parallel", "flash_attention"),
    *("zero_quantized_weights", "zero_quantized_gradients"),
)
AXES = tuple(name.replace("_", "-") for name in (*_WHOLE, *_NAMES, *_FLAGS))
_OF_INFERENCE = ("kv_cache_dtype", "quantization")


def parse_axis(text: str, known: Sequence[str] = AXES) -> tuple[str, tuple[Any, ...]]:
    """An axis and its values as written, `tp=1,2,4`.

    >>> parse_axis("micro-batch=1,2")
    ('micro_batch', (1, 2))

    Raises InvalidSpec and UnknownName.
    """
    axis, equals, values = text.partition("=")
    if not equals or not values:
        raise InvalidSpec(f"--sweep {text!r}: write AXIS=V1,V2, such as tp=1,2,4")
    if axis.replace("_", "-") not in known:
        raise UnknownName("sweep axis", axis, known)
    name = axis.replace("-", "_")
    return name, tuple(_value(name, part.strip()) for part in values.split(","))


def _value(axis: str, text: str) -> Any:
    if axis in (*_NAMES, *_OF_INFERENCE):
        return text
    written = f"--sweep {axis.replace('_', '-')}={text!r}"
    if axis in _FLAGS:
        if text not in ("on", "off"):
            raise InvalidSpec(f"{written}: write on or off")
        return text == "on"
    least = 0 if axis in ("zero", "recompute_layers") else 1
    if not text.isdecimal() or not least <= int(text) <= 10**7:
        raise InvalidSpec(f"{written}: write whole numbers between {least} and 10^7")
    return int(text)


def points(
    axes: Sequence[str], known: Sequence[str] = AXES
) -> Iterator[dict[str, Any]]:
    """Each combination of the values of *axes*, which are among those *known*.

    Raises InvalidSpec for more than 10,000 of them, and what `parse_axis` does.
    """
    named = dict(parse_axis(text, known) for text in axes)
    if len(named) < len(axes):
        raise Contradiction("--sweep names one axis twice; list its values together")
    count = prod(map(len, named.values()))
    if count > MOST_POINTS:
        raise InvalidSpec(f"--sweep has {count} combinations, most {MOST_POINTS}")
    for values in product(*named.values()):
        yield dict(zip(named, values, strict=True))


class Shown(Protocol):
    """What a sweep has at a point: an estimate, of training or inference."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def document(self) -> dict[str, Any]: ...


Found = TypeVar("Found", bound=Shown)


def sweep(
    axes: Sequence[str],
    options: Sequence[Any],
    price: Callable[..., Found],
    known: Sequence[str] = AXES,
    refused: tuple[type[Exception], ...] = (Contradiction,),
) -> Iterator[tuple[dict[str, Any], Found | str]]:
    """Each combination of the axes' values, with the *price* of *options* there, or
    why it is *refused*. Raises as `points`."""
    for point in points(axes, known):
        try:
            yield point, price(*(_at(one, point) for one in options))
        except refused as error:
            yield point, str(error)


def _at(options: Any, point: Mapping[str, Any]) -> Any:
    """*options* with those of their fields that a point of the sweep gives."""
    names = {field.name for field in fields(options)}
    return replace(options, **{key: point[key] for key in names & point.keys()})


SWEEP_COLUMNS: Final[Mapping[str, Callable[[Estimate], str]]] = {
    "step time": lambda found: format_seconds(found.step_time_s),
    "tokens/s/GPU": lambda found: f"{found.tokens_per_s_per_gpu:,.0f}",
    "MFU": lambda found: f"{found.mfu:.1%}",
    "peak memory": lambda found: format_bytes(found.peak_memory_bytes),
    "fits": lambda found: "yes" if found.fits else "no",
}


def show_sweep(
    rows: Sequence[tuple[Mapping[str, Any], Found | str]],
    columns: Mapping[str, Callable[[Found], str]],
    *,
    as_json: bool,
) -> None:
    """Print one line a point of a sweep: *columns* of its estimate, or why it has none;
    or all of them as one JSON document."""
    if as_json:
        points = [
            {"point": point, "estimate": None, "error": found}
            if isinstance(found, str)
            else {"point": point, "estimate": found.document(), "error": None}
            for point, found in rows
        ]
        emit_json({"sweep": points})
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in (*rows[0][0], *columns):
        table.add_column(name.replace("_", "-"), justify="right")
    table.add_column("", overflow="fold")
    for point, found in rows:
        cells = [str(value) for value in point.values()]
        if isinstance(found, str):
            table.add_row(*cells, *[""] * len(columns), found)
            continue
        written = (f"{name.replace('_', '-')}={value}" for name, value in point.items())
        where = " ".join(written)
        for line in found.warnings:
            warn(f"{where}: {line}")
        table.add_row(*cells, *(write(found) for write in columns.values()))
    console().print(table)
