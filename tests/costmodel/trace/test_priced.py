"""The priced trace: what Perfetto would show, queried as it would be there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel import simulate
from costmodel.simulation.estimator import Estimate
from costmodel.trace.events import ACTIONS, trace_text
from costmodel.trace.priced import BEHIND, STREAMS, priced_trace
from profiles.units import GiB
from tests.support.traces import tables

SMALL: dict[str, Any] = {"model": "gpt-13b", "gpus": 32, "global_batch": 64}
LAYOUTS: dict[str, dict[str, Any]] = {
    "1f1b": {"tp": 4, "pp": 2, "micro_batch": 4},
    "recompute": {"tp": 2, "pp": 4, "micro_batch": 1, "recompute": "full"},
    "zero-3": {"zero": 3, "micro_batch": 1, "cp": 2, "recompute": "full"},
    "zb-v": {"pp": 4, "micro_batch": 1, "schedule": "zb-v"},
    "interleaved": {"pp": 4, "virtual_stages": 2, "schedule": "interleaved"},
    "chimera": {"pp": 4, "micro_batch": 1, "schedule": "chimera"},
    "offload": {"pp": 2, "offload": "optimizer,activations=0.5", "micro_batch": 1},
    "experts": {"model": "mixtral-8x7b", "ep": 8, "pp": 4, "cluster": "dgx-h100"},
    "overlapped": {
        "model": "mixtral-8x7b",
        "pp": 4,
        "ep": 8,
        "schedule": "dualpipe-v",
        "cluster": "dgx-h100",
        "global_batch": 128,
    },
}
BY_STREAM = (
    "select thread.name, slice.category, sum(dur) / 1e9 from slice "
    "join thread using (pid, tid) where slice.pid = ? "
    "and category not in ('action', 'hidden') group by thread.name, category"
)


@pytest.fixture(params=LAYOUTS)
def priced(request: pytest.FixtureRequest) -> Estimate:
    asked = {**SMALL, **LAYOUTS[request.param]}
    return simulate(asked.pop("model"), **asked)


def test_streams_hold_what_the_breakdown_says(priced: Estimate) -> None:
    db = tables(trace_text(priced_trace(priced)))
    last = int(np.argmax(priced.timeline.rank_end_s))
    found = {
        category: (stream, seconds)
        for stream, category, seconds in db.execute(BY_STREAM, (last,))
    }
    assert {name: stream for name, (stream, _) in found.items()}.items() <= (
        STREAMS.items()
    )
    slices = len(priced.timeline.program.order) * 8
    for name, seconds in priced.breakdown_s.items():
        had = found.get(name, ("", 0.0))[1]
        assert had == pytest.approx(seconds, abs=slices * 1e-9), name


def test_every_instant_of_every_stage_is_accounted_for_once(priced: Estimate) -> None:
    db = tables(trace_text(priced_trace(priced)))
    stages = [pid for (pid,) in db.execute("select pid from process order by pid")]
    assert stages == list(range(priced.layout.pp))
    slices = len(priced.timeline.program.order) * 8
    for stage in stages:
        whole = sum(row[2] for row in db.execute(BY_STREAM, (stage,)))
        assert whole == pytest.approx(priced.step_time_s, abs=slices * 1e-9)


def test_memory_reaches_the_estimated_peak(priced: Estimate) -> None:
    db = tables(trace_text(priced_trace(priced)))
    most = dict(db.execute("select pid, max(value) from counter group by pid"))
    assert most == {
        rank: pytest.approx(float(one.total) / GiB)
        for rank, one in enumerate(priced.memory)
    }


def test_stages_are_processes_and_messages_are_streams_of_their_sender() -> None:
    found = simulate(**SMALL, pp=4, tp=2, cluster="a100-pcie")
    db = tables(trace_text(priced_trace(found)))
    names = [name for (name,) in db.execute("select name from process order by pid")]
    assert names[0] == "stage 0 (on 8 GPUs)"
    streams = {row[0] for row in db.execute("select name from thread where pid = 1")}
    assert {ACTIONS, "compute", "tp", "dp", "idle", "pp to 0", "pp to 2"} <= streams
    assert BEHIND in streams
    (sent,) = db.execute(
        "select count(*) from slice join thread using (pid, tid) "
        "where thread.name = 'pp to 2' and pid = 1"
    ).fetchone()
    assert sent == found.layout.micro_batches


def test_perfettos_own_trace_processor_finds_the_breakdown(tmp_path: Path) -> None:
    """Needs `pip install perfetto` and its program, which it downloads, or finds where
    PERFETTO_TRACE_PROCESSOR says."""
    processor = pytest.importorskip(
        "perfetto.trace_processor", reason="perfetto is not installed"
    )
    program = os.environ.get("PERFETTO_TRACE_PROCESSOR")
    if program is None:
        pytest.skip("PERFETTO_TRACE_PROCESSOR names no trace_processor_shell")
    found = simulate(**SMALL, tp=4, pp=2, micro_batch=4)
    file = tmp_path / "step.json"
    file.write_text(trace_text(priced_trace(found)))
    last = int(np.argmax(found.timeline.rank_end_s))
    setup = processor.TraceProcessorConfig(bin_path=program)
    with processor.TraceProcessor(trace=str(file), config=setup) as opened:
        rows = opened.query(
            "select slice.category as category, sum(dur) / 1e9 as seconds from slice "
            "join thread_track on slice.track_id = thread_track.id "
            "join thread using (utid) join process using (upid) "
            f"where process.pid = {last} "
            "and category not in ('action', 'hidden') group by category"
        )
        seconds = {row.category: row.seconds for row in rows}
    for name, wanted in found.breakdown_s.items():
        assert seconds.get(name, 0.0) == pytest.approx(wanted, abs=1e-5), name
