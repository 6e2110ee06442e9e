"""The summary of the matrix, from rows that are given."""

from __future__ import annotations

from benchmarks.numerics_report import Row, kinds, rows_of, summary
from tests.support.apart import Distance
from tests.support.matrix import HEAD_COPY, Seen
from tests.support.training_cases import WORLDS, cases_of

NAME = "tp2 sp pp2 dp2 zero1 zb-v"


def row(optimizer: str, *, name: str = NAME, worst: float = 1e-6) -> Row:
    return Row("gpt", name, 8, optimizer, 1e-7, 2e-7, 3e-7, worst, worst, worst, True)


def test_a_case_counts_for_all_that_it_is_an_example_of() -> None:
    found = {kind for kind, holds in kinds().items() if holds(row("adamw"))}
    assert found == {
        "tensor parallel",
        "with sequence parallelism",
        "ZeRO-1",
        "zb-v",
        "split backwards",
        "tied embeddings over stages",
        "3 dimensions at once",
    }


def test_each_kind_has_cases_and_each_case_a_kind() -> None:
    rows = [
        row("sgd", name=name)._replace(family=family, ranks=world)
        for world in WORLDS
        for family, name in cases_of(world)
    ]
    assert all(any(map(holds, rows)) for holds in kinds().values())
    assert all(any(holds(one) for holds in kinds().values()) for one in rows)


def test_the_summary_has_the_largest_of_a_kind_and_tensors_by_sgd_alone() -> None:
    other = "tp2 sp pp2 dp2 chimera"
    rows = [row("adamw", worst=1.0), row("sgd"), row("sgd", name=other, worst=2e-6)]
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in summary(rows).partition("\n\n")[0].splitlines()[2:]
    }
    assert cells["zb-v"] == [
        "1",
        "8",
        "1.0e-07",
        "2.0e-07",
        "3.0e-07",
        *["1.0e-06"] * 3,
    ]
    assert cells["chimera"][-1] == cells["**all**"][-1] == "2.0e-06"
    assert cells["**all**"][0] == "2"
    assert "ZeRO-3" not in cells


def test_the_summary_says_how_many_ran_as_priced() -> None:
    found = summary([row("adamw"), row("sgd")._replace(as_priced=False)])
    assert "In 1 of 2 runs every rank" in found


def test_a_copy_of_the_head_counts_by_itself_and_not_in_the_whole() -> None:
    near, far = Distance(0.0, 1.0), Distance(4.0, 1.0)
    away = {"table": near, HEAD_COPY: far}
    seen = Seen(
        losses=0.0,
        norm=0.0,
        gradients=away,
        parameters=away,
        updates=away,
        recorded=[[{"action": "0F0", "collectives": {}}]],
    )
    (found,) = rows_of("sgd", {("gpt", NAME): seen})
    assert not found.as_priced
    assert found.gradients == 0.0
    assert found.worst_gradient == found.worst_update == 2.0
