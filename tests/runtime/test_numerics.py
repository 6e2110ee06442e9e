"""Every layout trains like one process in plain PyTorch, and sends what is priced."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import pytest

from costmodel.action_traffic import stream_traffic
from costmodel.traffic import Exchanged
from costmodel.uniform import Uniform, spell_out
from tests.training import WHOLE, apart, reference, seen_by_all
from tests.training_cases import (
    BATCH,
    EXPERTS,
    USUAL,
    cases_of,
    choice_of,
    job,
    parts_of,
    usual,
)

ROWS = "ep:all_to_all"
LOSS, NORM, TENSORS = 1e-5, 1e-5, 1e-4


@lru_cache(maxsize=2)
def plain(family: str, parts: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    return reference(family, parts)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
def test_layouts_train_like_one_process(world: int) -> None:
    _require_alike(world, [one for one in cases_of(world) if usual(*one)])


@pytest.mark.matrix
@pytest.mark.parametrize("world", [2, 4])
def test_the_rest_of_the_matrix_does_so_too(world: int) -> None:
    _require_alike(world, [one for one in cases_of(world) if not usual(*one)])


def test_usual_cases_are_cases() -> None:
    known = {one for world in (2, 4) for one in cases_of(world)}
    assert {
        (family, name) for family in USUAL for name in USUAL[family].split()
    } <= known
    assert len(known) + len(cases_of(1)) >= 80


def _require_alike(world: int, cases: list[tuple[str, str]]) -> None:
    """Losses of ten steps, the first gradients and the last parameters; and the
    executed stream, its collectives counted and weighed, is the priced one."""
    for (family, name), seen in seen_by_all(world, cases).items():
        parts = parts_of(choice_of(family, name)) if family == "switch" else WHOLE
        wanted = plain(family, parts)
        pairs = zip(seen["losses"], wanted["losses"], strict=True)
        assert max(abs(one - two) for one, two in pairs) < LOSS, (family, name)
        assert seen["norm"] == pytest.approx(wanted["norm"], rel=NORM), (family, name)
        for part in ("gradients", "parameters"):
            distance = apart(seen[part], wanted[part])
            assert distance < TENSORS, (family, name, part, distance)
        _require_priced(family, name, seen["recorded"])


def _require_priced(family: str, name: str, recorded: list[Any]) -> None:
    """Each rank's actions and their collectives are what the cost model says.

    Rows that come back from experts are as many on each rank as its router says; over
    the ranks of a stage together they are those that went.
    """
    from runtime.trainer import rank_stream

    choice, asked = choice_of(family, name), job(family)
    layout = spell_out(choice, asked.graph, BATCH)
    rows: Counter[tuple[int, int]] = Counter()
    for rank, records in enumerate(recorded):
        stage = rank // (choice.gpus // choice.pp)
        stream = rank_stream(layout, stage)
        assert [one["action"] for one in records] == list(map(str, stream))
        priced = stream_traffic(asked, layout, stream)
        pairs = zip(records, priced, strict=True)
        for number, (one, exchanged) in enumerate(pairs):
            where = (family, name, rank, one["action"])
            wanted, seen = (
                _as_recorded(family, choice, exchanged),
                dict(one["collectives"]),
            )
            if ROWS in wanted:
                (count, size), (times, sent) = wanted.pop(ROWS), seen.pop(ROWS)
                rows[stage, number] += sent - size
                assert count == times, where
                assert family != "switch" or sent == size, where
            assert seen == wanted, where
    assert not any(rows.values()), (family, name)


def _as_recorded(
    family: str, choice: Uniform, exchanged: Exchanged
) -> dict[str, list[int]]:
    """Axes that span the job have the world's group in common, and the last's name."""
    whole = choice.dp * choice.cp * choice.tp
    degrees = {"pp": choice.pp, "dp": choice.dp * choice.cp, "tp": choice.tp}
    if family in EXPERTS:
        degrees |= {"edp": whole // choice.ep, "ep": choice.ep}
    spanning = [axis for axis, n in degrees.items() if n == choice.gpus]
    known = dict.fromkeys([*spanning, "world"], (spanning or ["other"])[-1])
    found: dict[str, list[int]] = {}
    for (axis, kind), traffic in exchanged.items():
        key = f"{known.get(axis, axis)}:{kind}"
        count, size = found.get(key, [0, 0])
        found[key] = [count + traffic.count, size + traffic.size_bytes]
    return found
