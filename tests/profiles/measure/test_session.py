"""A whole measurement with real processes, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import start_processes

from profiles.errors import RunFailed
from profiles.measure import drives, processes, session
from profiles.measure.drives import DriveRates
from profiles.measure.machine import CALIBRATION
from profiles.measure.plan import COMES_SOON, HAS_BESIDE
from profiles.measure.processes import run
from profiles.measure.session import Question, measure, request_of
from profiles.measure.survey import Result, survey
from profiles.measure.tables import cluster_of
from profiles.measure.timing.tasks import FORWARD, Operation, Request
from profiles.samples.files import read_samples, write_samples
from profiles.samples.table import (
    CollectiveKey,
    OperatorKey,
    Sample,
    Samples,
    local_cluster,
)
from profiles.units import KiB, MiB
from tests.runtime.ranks import METHOD, SLOW_TO_IMPORT
from tests.support.small_jobs import job

BUDGET_S = 0.2
LINKS = ("loopback", "ethernet")
QUESTION = Question(
    device="cpu", ranks=2, precisions=("fp32",), jobs=(job(),), quick=True
)


def seen(kind: str, *shape: int) -> OperatorKey:
    return OperatorKey(
        device="x",
        software="torch",
        kind=kind,
        direction=FORWARD,
        shape=shape,
        precision="fp32",
        backend="eager",
    )


SECOND = Sample(seconds=1.0, spread=0.0, repeats=1, provenance="measured")
RESULT = Result(
    operations=(),
    exchanges=(),
    calibrations=((1.0, 1.0),),
    copy_bytes_per_s=5e9,
    cpu_s=1.0,
    facts={},
)
SEEN = {seen("matmul", 10, 10, 10): SECOND, seen("host-copy", 1000): SECOND}


class Alone:
    """One rank: it waits for nobody."""

    ranks, rank = 1, 0

    def barrier(self) -> None:
        pass

    def largest(self, *values: float) -> tuple[float, ...]:
        return values


def ignore(done: float, of: float) -> None:
    pass


@pytest.fixture(autouse=True)
def short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "QUICK_BYTES", 4 * KiB)


@pytest.fixture(scope="module")
def measured() -> Iterator[Samples]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "QUICK_BYTES", 4 * KiB)
        patched.setattr(session, "run", run_forked)
        patched.setattr(drives, "QUICK_BYTES", MiB)
        yield measure(QUESTION, ignore, budget_s=BUDGET_S).samples


def run_forked(request: Request, *_: Any, **__: Any) -> tuple[Result, ...]:
    """`run` with ranks that are forked: those that it starts import torch each."""
    get_context(METHOD).set_forkserver_preload(SLOW_TO_IMPORT)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "request").write_bytes(msgspec.json.encode(request))
        start_processes(one_rank, (folder,), request.ranks, start_method=METHOD)
        return tuple(
            msgspec.json.decode((folder / f"{rank}").read_bytes(), type=Result)
            for rank in range(request.ranks)
        )


def one_rank(rank: int, folder: Path) -> None:
    os.environ["RANK"] = str(rank)
    with (
        patch.object(processes, "_die_with_parent"),  # it is not our stdin
        redirect_stdout(StringIO()),
    ):
        processes.main(str(folder / "request"), str(folder / f"{rank}"))


def test_all_that_was_planned_is_measured(measured: Samples) -> None:
    request = request_of(QUESTION, "", BUDGET_S)
    assert len(measured.operators) == len(request.operations)
    amid = len((*COMES_SOON, *HAS_BESIDE))  # of the smaller of two sizes
    assert len(measured.collectives) == len(request.exchanges) == 6 * 2 + amid
    assert {key.co_running for key in measured.operators} == {"ranks=2"}
    assert {key.fabric for key in measured.collectives} == {"loopback"}


def test_the_machine_is_described(measured: Samples) -> None:
    machine = measured.machine
    assert machine["ranks"] == "2"
    assert (
        machine["software"] == f"torch-{machine['torch']}/{machine['threads']}-threads"
    )
    assert 0 < float(machine[CALIBRATION]) < 60
    assert machine["noise"].split(":")[0] in ("quiet", "noisy")
    assert {"host cpu", "cores", "date", "command", "collectives"} <= machine.keys()


def test_the_cluster_local_is_the_machine(measured: Samples) -> None:
    cluster = local_cluster(measured)
    assert (cluster.name, cluster.gpus) == ("local", 2)
    device = cluster.device
    assert {key.device for key in measured.operators} == {device.name}
    assert (device.name, device.architecture) == (measured.machine["device"], "cpu")
    assert device.peak["fp32"].si > 0
    assert device.memory_bytes_per_s > 0
    assert cluster.island.levels[-1].kind == "loopback"


def test_a_measurement_is_written_and_read(measured: Samples, tmp_path: Path) -> None:
    write_samples(measured, tmp_path / "samples.json")
    assert read_samples(tmp_path / "samples.json") == measured


def test_one_rank_needs_no_group() -> None:
    request = request_of(replace(QUESTION, ranks=1), "", 0.01)
    alone = replace(request, operations=request.operations[:9])
    result = survey(alone, Alone(), ignore)
    assert [one and len(one.seconds) >= 1 for one in result.operations] == [True] * 9
    assert (request.exchanges, result.exchanges) == ((), ())


def test_ceilings_are_those_that_were_seen() -> None:
    request = request_of(replace(QUESTION, ranks=1), "", 1.0)
    cluster = cluster_of(
        request,
        (RESULT,),
        SEEN,
        {},
        device="x",
        links=LINKS,
        memory_bytes=2**30,
        drives=DriveRates(read=2e9, write=1e9),
    )
    assert (cluster.gpus, cluster.device.name) == (1, "x")
    read, write = cluster.island.drive_read, cluster.island.drive_write
    assert [one and one.si for one in (read, write)] == pytest.approx([2e9, 1e9])
    assert cluster.device.peak["fp32"].si == pytest.approx(2000)
    assert cluster.device.host_link.si == pytest.approx(2000)
    assert cluster.device.memory_bytes_per_s == pytest.approx(5e9)


def test_several_nodes_are_joined_by_a_network() -> None:
    request = replace(request_of(replace(QUESTION, ranks=1), "", 1.0), ranks=4, nodes=2)
    sent = {
        CollectiveKey(fabric=kind, collective="send", ranks=ranks, size_bytes=size): (
            replace(SECOND, seconds=size / rate)
        )
        for kind, ranks, rate in (("loopback", (2,), 1e9), ("ethernet", (1, 2), 1e8))
        for size in (1_000, 1_001_000)
    }
    cluster = cluster_of(
        request, (RESULT,), SEEN, sent, device="x", links=LINKS, memory_bytes=2**30
    )
    near, far = cluster.island.levels
    assert (cluster.gpus, cluster.island.devices_per_node) == (4, 2)
    assert (near.kind, near.devices, near.bytes_per_s) == ("loopback", 2, 1e9)
    assert (far.kind, far.devices, far.bytes_per_s) == ("ethernet", None, 1e8)


def test_a_known_gpu_is_the_catalogues_and_another_is_as_seen() -> None:
    request = replace(request_of(replace(QUESTION, ranks=1), "", 1.0), device="cuda")
    facts = {
        "architecture": "sm-99",
        "device memory bytes": str(2**36),
        "multiprocessors": "7",
    }
    result = replace(RESULT, facts=facts)
    for name, memory in (("H100-SXM-80GB", 79.1), ("thing", 64.0)):
        cluster = cluster_of(
            request, (result,), SEEN, {}, device=name, links=LINKS, memory_bytes=2**30
        )
        assert cluster.device.name == name
        assert cluster.device.usable_memory.value == pytest.approx(memory)


def test_a_rank_that_dies_ends_all_of_them(tmp_path: Path) -> None:
    request = request_of(QUESTION, str(tmp_path / "meeting"), 30.0)
    killed: list[int] = []

    def kill_one(done: float, of: float) -> None:
        running = children()
        if len(running) == 2 and not killed:
            killed.extend(running)
            os.kill(running[1], signal.SIGKILL)

    with pytest.raises(RunFailed, match=r"rank \d was killed by signal 9"):
        run(request, kill_one)
    assert len(killed) == 2
    assert not children()


def test_a_rank_that_fails_says_why(tmp_path: Path) -> None:
    request = request_of(replace(QUESTION, ranks=1), str(tmp_path / "meeting"), 5.0)
    unknown = Operation(kind="conv", direction=FORWARD, shape=(2, 2))
    with pytest.raises(RunFailed, match=r"ended with code 1: .*'conv' are not"):
        run(replace(request, operations=(unknown,)), ignore)
    assert not children()


def test_time_runs_out(tmp_path: Path) -> None:
    request = request_of(QUESTION, str(tmp_path / "meeting"), 5.0)
    with pytest.raises(RunFailed, match="longer than 0 s"):
        run(replace(request, timeout_s=0.01), ignore)
    assert not children()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(
    environment: dict[str, str], tmp_path: Path, sent: signal.Signals
) -> None:
    out = tmp_path / "samples.json"
    command = [sys.executable, "-m", "profiles", "--out", str(out), "--nproc", "2"]
    with subprocess.Popen(
        [*command, "--model", "gpt-tiny"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait(lambda: len(children(process.pid)) == 2)
        started = children(process.pid)
        process.send_signal(sent)
        stdout, stderr = process.communicate(timeout=60)
    wait(lambda: not any(Path(f"/proc/{child}").exists() for child in started))
    assert not out.exists()
    if sent == signal.SIGINT:
        assert (process.returncode, stdout) == (130, "")
        assert stderr.endswith("interrupted\n")


def wait(until: Callable[[], bool]) -> None:
    for _ in range(600):
        if until():
            return
        time.sleep(0.1)
    raise AssertionError("waited a minute in vain")


def children(parent: int | None = None) -> list[int]:
    """Measuring processes of *parent* (this process) that run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, above = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        ours = int(above) == (parent or os.getpid()) and state != "Z"
        if ours and "profiles.measure.processes" in command:
            found.append(int(folder.name))
    return sorted(found)
