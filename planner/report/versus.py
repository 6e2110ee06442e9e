"""The same job on other clusters, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from costmodel.options import RunOptions
from costmodel.report import layout_words
from costmodel.sweep import (
    counted_in,
    dollars_per_mtoken,
    heading,
    kwh_per_mtoken,
    unit_of,
)
from planner.analysis import Rival
from profiles.units import format_seconds

if TYPE_CHECKING:
    from rich.table import Table


def versus_table(found: Sequence[Rival], run: RunOptions) -> Table:
    """One line a cluster."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("cluster", no_wrap=True)
    names = ["step", "tokens/s/GPU", "speed", "$/GPU-h", "even at"]
    names += ["$/Mtoken", "kWh/Mtoken", *([] if run.tokens is None else ["days"])]
    unit = unit_of(one.found for one in found)
    for name in names:
        table.add_column(heading(counted_in(unit, name)), justify="right", no_wrap=True)
    for one in found:
        if one.found is None:
            table.add_row(one.cluster, "none")
            continue
        days = one.days(run)
        table.add_row(
            one.cluster,
            format_seconds(one.found.step_time_s),
            f"{one.found.tokens_per_s_per_gpu:,.0f}",
            f"× {_number(one.faster, 2)}",
            _number(one.found.device_cost, 2),
            _number(one.break_even, 2),
            _number(dollars_per_mtoken(one.found), 3),
            _number(kwh_per_mtoken(one.found), 4),
            *(["never" if days is None else f"{days:,.1f}"] if run.tokens else []),
        )
    return table


def versus_layouts(found: Sequence[Rival]) -> Iterator[tuple[str, str]]:
    """The layout on each, or why there is none."""
    for one in found:
        if one.found is None:
            yield one.cluster, f"none: {one.reason}"
        else:
            yield one.cluster, layout_words(one.found.layout)


def versus_words(found: Sequence[Rival]) -> list[str]:
    """What each of the others is worth, in a sentence."""
    first, *others = found
    unit = unit_of(one.found for one in found)
    a_token = f"{'an' if unit == 'images' else 'a'} {unit.removesuffix('s')}"
    said = []
    for one in others:
        if one.faster is None:
            continue
        worth = f"a GPU-hour of {one.cluster} is worth {one.faster:.2f}"
        worth += f" of {first.cluster}"
        if one.break_even is None:
            said.append(f"{worth}; its price is not known (--sweep device-price)")
            continue
        said.append(
            f"{worth}: below {one.break_even:,.2f} USD it makes {a_token} cheaper"
        )
    return said


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
