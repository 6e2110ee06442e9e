"""The table of families: a row a model, a column a layout."""

from __future__ import annotations

from benchmarks.families import table
from tests.support.foreign_models import LAYOUTS, Apart


def test_each_cell_is_of_its_model_and_layout() -> None:
    models = ("gpt2", "llama")
    seen = {
        (name, layout): Apart(loss=row, norm=column)
        for row, name in enumerate(models)
        for column, layout in enumerate(LAYOUTS)
    }
    head, _, *rows = table(models, seen).splitlines()
    assert head.split(" | ")[1] == "one rank"
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[0] for row in cells] == list(models)
    assert cells[1][2] == "1.0e+00, 1.0e+00"
