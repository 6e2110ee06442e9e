"""Tables of runs that somebody measured on a machine whose truth is known."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from costmodel.machine.assembly import Machine
from costmodel.runs.pricing import ask_runs, price_asked
from costmodel.runs.table import read_runs
from tests.support.full_row import FULL

Row = dict[str, str]
LAYOUTS = (
    *({"tp": "1", "pp": "1"}, {"tp": "2", "pp": "1"}, {"tp": "4", "pp": "1"}),
    *({"tp": "1", "pp": "2"}, {"tp": "2", "pp": "2"}, {"tp": "4", "pp": "2"}),
    *({"tp": "8", "pp": "1"}, {"tp": "8", "pp": "2"}, {"tp": "1", "pp": "4"}),
)


def rows(count: int = len(LAYOUTS), **cells: str) -> list[Row]:
    """A small GPT in so many layouts, nothing measured."""
    given = {"dp": "", "zero_group": "", "recompute": "none", **cells}
    sizes = ("1", "2", "4")
    return [
        {
            **FULL,
            **LAYOUTS[number % len(LAYOUTS)],
            "micro_batch": sizes[number // len(LAYOUTS) % len(sizes)],
            **given,
        }
        for number in range(count)
    ]


def written(path: Path, table: Sequence[Mapping[str, str]]) -> Path:
    """*table* as a CSV file."""
    names = list(dict.fromkeys(name for row in table for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(table)
    return path


def measured(
    path: Path,
    table: Sequence[Row],
    truth: Mapping[str, float] | None = None,
    pace: float = 1.0,
) -> Path:
    """*table* with the step times of a machine whose coefficients are *truth* times
    as large, and whose every step takes *pace* times as long."""
    written(path, table)
    asked = ask_runs(read_runs(path))

    def there(on: Machine) -> Machine:
        values = on.fitted.values
        changed = {name: values[name] * by for name, by in (truth or {}).items()}
        return on.fitted_as(on.fitted.changed(changed)).paced(pace)

    found = [item.price for item in price_asked(asked, there)]
    return written(
        path,
        [
            {**row, "step_time_s": f"{price.step_time_s:.8g}" if price else ""}
            for row, price in zip(table, found, strict=True)
        ],
    )
