"""The memory snapshot: PyTorch's own functions read it."""

from __future__ import annotations

import json
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest

from costmodel import simulate
from costmodel.simulation.estimator import Estimate
from costmodel.trace.snapshot import memory_snapshot, snapshot_bytes
from tests.costmodel.trace.test_priced import LAYOUTS, SMALL
from tests.support.commanded import refused
from tests.support.commanded import simulate as command

_ROUNDED = 512 * 64  # bytes: each block to 512


def estimate_of(name: str) -> Estimate:
    asked = {**SMALL, **LAYOUTS[name]}
    return simulate(asked.pop("model"), **asked)


def levels(events: list[dict[str, Any]]) -> list[int]:
    """Bytes after each event; no block is taken where another lies."""
    alive: dict[int, int] = {}
    found = []
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert alive.pop(event["addr"]) == event["size"]
        found.append(sum(alive.values()))
    return found


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "chimera", "offload", "zero-3"])
def test_the_most_at_once_is_the_estimated_peak(name: str) -> None:
    found = estimate_of(name)
    snapshot = memory_snapshot(found)
    for rank, events in enumerate(snapshot["device_traces"]):
        peak = max(levels(events))
        assert peak == pytest.approx(float(found.memory[rank].total), abs=_ROUNDED)
        times = [event["time_us"] for event in events]
        assert times == sorted(times)
        segment = snapshot["segments"][rank]
        assert segment["total_size"] >= peak
        assert sum(one["size"] for one in segment["blocks"]) == segment["total_size"]


def test_torch_understands_it() -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = memory_snapshot(estimate_of("1f1b"))
    told = viz.trace(snapshot)
    assert "Device 0" in told
    assert "Device 1" in told
    assert viz.segsum(snapshot).count("[") >= len(snapshot["segments"])
    flames = viz.memory(snapshot, format_flamegraph=str)  # a script from the net
    assert "optimizer" in flames
    assert "<html" in viz.trace_plot(snapshot)
    assert "<html" in viz.segment_plot(snapshot)


def test_the_pickle_holds_builtin_types_alone(tmp_path: Path) -> None:
    found = estimate_of("1f1b")
    pickled = snapshot_bytes(tmp_path / "m.pickle", found)
    calls = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ"}
    assert {code.name for code, _, _ in pickletools.genops(pickled)} & calls == set()
    as_json = json.loads(snapshot_bytes(tmp_path / "m.json", found))
    assert pickle.loads(pickled) == as_json == memory_snapshot(found)


def test_the_command_writes_it_by_its_suffix(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ("gpt-tiny", "--gpus", "2", "--memory-snapshot")
    assert command(*asked, str(tmp_path / "m.json")) == 0
    capsys.readouterr()
    assert set(json.loads((tmp_path / "m.json").read_text())) >= {
        "segments",
        "device_traces",
    }
    file = tmp_path / "m.txt"
    assert ".pickle" in refused(capsys, *asked, str(file))
    assert not file.exists()
