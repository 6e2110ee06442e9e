"""docs/systems.md: every system of the reading list, and tests that are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from docs.systems import Check, checks, lacking

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "systems.md"
STATES = ("works", "simulated only", "not yet", "paper only")

# The rows of the reading list: a letter a theme, and how many works it has.
THEMES = {"A": 7, "B": 4, "C": 2, "D": 7, "E": 14, "G": 7, "H": 11, "I": 8, "J": 5}
IDS = [
    *(f"{theme}{n}" for theme, last in THEMES.items() for n in range(1, last + 1)),
    *(f"F{n}" for n in range(6)),
    *("K1", "K2"),
    *(f"L{n}" for n in range(1, 7)),
]
# The leaves of the surveys' taxonomies, in their order.
LEAVES = {
    "B1": """optimizers; initialisation; sparse training; over-parameterisation;
        large-batch training; incremental training; token masking; importance sampling;
        parallelism; quantised training; rematerialisation; offloading;
        parameter-efficient tuning; sparse matrix products; low precision;
        attention kernels""",
    "B2": """naive model parallelism; synchronous pipelines; asynchronous pipelines;
        tensor and sharded parallelism; spilling and offloading;
        hybrids: ZeRO, FSDP, 3D; several models at once""",
    "B3": """accelerators; chip-to-chip networks; node-to-node networks;
        in-network aggregation of an infrastructure; storage; scheduling of jobs;
        hybrid parallelism; auto-parallelism of general graphs;
        auto-parallelism of transformers; heterogeneous parallelism;
        operator optimisation; mixed precision; static recomputation;
        dynamic recomputation; selective recomputation; redundancy reduction;
        defragmentation; memory offloading; collectives; scheduling of communication;
        in-network communication; failure analysis; failure detection;
        recovery from checkpoints; recovery without checkpoints""",
}


class Row(NamedTuple):
    """One system: what of it is here."""

    name: str
    item: str
    state: str
    here: str


def systems() -> list[Row]:
    text = PAGE.read_text(encoding="utf-8").partition("## What each check")[0]
    lines = text.splitlines()
    _, _, *rows = (line for line in lines if line.startswith("|"))
    return [Row(*(x.strip() for x in row.strip("|").split("|"))) for row in rows]


def leaves() -> list[tuple[str, str, str]]:
    """Each leaf: its survey, its name, and its rows or why it has none."""
    text = PAGE.read_text(encoding="utf-8").partition("## The surveys' leaves")[2]
    surveys = re.findall(r"^- \*\*(B\d)\*\*, [^:]*: (.*?)\.$", text, re.M | re.S)
    return [
        (survey, " ".join(leaf.split()), " ".join(where.split()))
        for survey, listed in surveys
        for leaf, where in re.findall(r"([^;]+?) \(([^()]*)\)", listed)
    ]


@cache
def marked() -> list[Check]:
    return checks()


each_row = pytest.mark.parametrize("row", systems(), ids=lambda row: row.name)


def test_every_system_has_one_row() -> None:
    assert sorted(row.name for row in systems()) == sorted(IDS)
    assert len(set(IDS)) == 79


@each_row
def test_a_row_says_how_far_it_is(row: Row) -> None:
    assert row.item
    assert row.here
    assert row.state in STATES
    shown = row.name in {check.row for check in marked()}
    assert shown == (row.state in ("works", "simulated only"))


def test_the_page_has_the_checks_that_tests_are_marked_with() -> None:
    found = marked()
    assert {one.row for one in found} <= set(IDS)
    assert not lacking(PAGE.read_text(encoding="utf-8")), "python -m docs.systems"


@pytest.mark.row("B1", "leaves of its taxonomy with a place", expected="16")
@pytest.mark.row("B2", "leaves of its taxonomy with a place", expected="7")
@pytest.mark.row("B3", "leaves of its taxonomy with a place", expected="25")
def test_every_leaf_of_the_surveys_has_a_place() -> None:
    """Rows of the table above, or out of scope with a reason."""
    wanted = [
        (survey, " ".join(leaf.split()))
        for survey, leaves in LEAVES.items()
        for leaf in leaves.split(";")
    ]
    places = {(survey, leaf): where for survey, leaf, where in leaves()}
    assert sorted(places) == sorted(wanted)
    assert len(leaves()) == len(wanted)
    for leaf, where in places.items():
        rows, _, reason = where.partition(": ")
        if rows == "out of scope":
            assert reason, leaf
        else:
            assert set(rows.split(", ")) <= set(IDS), leaf
