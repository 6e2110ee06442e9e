"""Every layout trains like one process in plain PyTorch, and sends what is priced."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest

from costmodel.action_traffic import Exchanged, stream_traffic
from costmodel.uniform import spell_out
from tests.training import (
    BATCH,
    CASES,
    apart,
    job,
    reference,
    seen_by_all,
)

LOSS, NORM, TENSORS = 1e-5, 1e-5, 1e-4


@lru_cache(maxsize=2)
def plain(family: str) -> dict[str, Any]:
    return reference(family)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
def test_layouts_train_like_one_process(world: int) -> None:
    """Losses of ten steps, the first gradients and the last parameters; and the
    executed stream, its collectives counted and weighed, is the priced one."""
    for (family, name), seen in seen_by_all(world).items():
        wanted = plain(family)
        pairs = zip(seen["losses"], wanted["losses"], strict=True)
        assert max(abs(one - two) for one, two in pairs) < LOSS, (family, name)
        assert seen["norm"] == pytest.approx(wanted["norm"], rel=NORM), (family, name)
        for part in ("gradients", "parameters"):
            distance = apart(seen[part], wanted[part])
            assert distance < TENSORS, (family, name, part, distance)
        _require_priced(family, name, seen["recorded"])


def _require_priced(family: str, name: str, recorded: list[Any]) -> None:
    """Each rank's actions and their collectives are what the cost model says."""
    from runtime.trainer import rank_stream

    choice, asked = CASES[name], job(family)
    layout = spell_out(choice, asked.graph, BATCH)
    for rank, records in enumerate(recorded):
        stream = rank_stream(layout, rank // (choice.gpus // choice.pp))
        assert [one["action"] for one in records] == list(map(str, stream))
        priced = stream_traffic(asked, layout, stream)
        for one, exchanged in zip(records, priced, strict=True):
            where = (family, name, rank, one["action"])
            assert one["collectives"] == _as_recorded(exchanged, name), where


def _as_recorded(exchanged: Exchanged, name: str) -> Mapping[str, list[int]]:
    """Where one axis spans the job, its group is the world's."""
    choice = CASES[name]
    degrees = {"pp": choice.pp, "dp": choice.dp * choice.cp, "tp": choice.tp}
    world = next((axis for axis, n in degrees.items() if n == choice.gpus), "other")
    found: dict[str, list[int]] = {}
    for (axis, kind), traffic in exchanged.items():
        key = f"{world if axis == 'world' else axis}:{kind}"
        count, size = found.get(key, [0, 0])
        found[key] = [count + traffic.count, size + traffic.size_bytes]
    return found
