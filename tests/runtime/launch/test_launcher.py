"""`runtime.launch.launcher`: workers start, are heard, die and are told of; none is
left."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from profiles.errors import Contradiction, RunFailed
from runtime.launch import launcher
from runtime.launch.agent import Attempt
from runtime.launch.launcher import Machines, Program, launch, require_startable

Start = Callable[..., str]

# Workers that load no torch start in a tenth of the time.
PLAIN = """
import os, sys, time
from runtime.launch.failures import status

rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
said, mode = status(int(rank)), sys.argv[1]
print(f"rank {rank} of {os.environ['WORLD_SIZE']}: {mode}", flush=True)
said.say("step 7, 1F3")
"""
AGREE = """
import os, signal, sys
import torch
import torch.distributed as dist
from runtime.launch.failures import status
from runtime.launch.processes import process_group, restarts

with process_group("cpu", timeout_s=20) as worker:
    total = torch.ones(4)
    dist.all_reduce(total)
    status(worker.rank).say("step 2")
    if worker.rank == 1 and restarts() < int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(total)
    if worker.rank == 0:
        print(worker.device, torch.get_num_threads(), int(total[0]))
"""


@pytest.fixture(autouse=True)
def _nobody_left(tmp_path: Path) -> Iterator[None]:
    """No process of the test outlives it, and what it kept is gone after."""
    yield
    assert alive(tmp_path) == []


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Launches a program's text as two ranks; returns what the terminal shows."""
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("COLOUR", "green")

    def starting(
        program: str, *arguments: str, nproc: int = 2, restarts: int = 0
    ) -> str:
        (tmp_path / "program.py").write_text(program)
        shown = io.StringIO()
        launch(
            Program(
                arguments=[*arguments, str(tmp_path)],
                module="program",
                imports="colorsys",  # torch would take seconds
            ),
            nproc=nproc,
            max_restarts=restarts,
            output=shown,
        )
        assert list(logs.iterdir()) == [], "a run that went well leaves no logs"
        return shown.getvalue()

    return starting


def alive(place: Path) -> list[str]:
    """Command lines of processes that have *place* in them, and are no zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(place) in line:
            found.append(line)
    return found


def failure(start: Start, program: str, *arguments: str, **settings: int) -> str:
    with pytest.raises(RunFailed) as caught:
        start(program, *arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_rank_0_prints_is_shown(start: Start) -> None:
    program = PLAIN + 'print(os.environ["COLOUR"], os.environ["OMP_NUM_THREADS"])'
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert start(program, "fine") == f"rank 0 of 2: fine\ngreen {threads}\n"


def test_a_killed_worker_is_told_with_its_last_words(start: Start) -> None:
    program = PLAIN + "if rank == '1': os.kill(os.getpid(), 9)\ntime.sleep(60)"
    line = failure(start, program, "killed")
    assert line.startswith("rank 1 was killed by SIGKILL")
    assert "in step 7, 1F3" in line


def test_an_error_is_told_from_the_log_it_is_in(start: Start) -> None:
    program = (
        PLAIN + "if rank == '1': raise ValueError('no such\\nthing')\ntime.sleep(60)"
    )
    line = failure(start, program, "raised")
    assert "rank 1 ended with exit code 1 in step 7, 1F3: ValueError: no such" in line
    log = Path(line.rpartition("its output: ")[2])
    assert "Traceback" in log.read_text()


def test_an_exit_code_is_told(start: Start) -> None:
    program = PLAIN + "if rank == '0': sys.exit(3)\ntime.sleep(60)"
    assert "rank 0 ended with exit code 3 in step 7, 1F3;" in failure(
        start, program, "left"
    )


def test_a_program_that_is_not_there_is_told(start: Start, tmp_path: Path) -> None:
    line = failure(start, "import nothing_of_this_name", nproc=1)
    assert "rank 0 ended with exit code 1 in its start: ModuleNotFoundError" in line


def test_all_start_again_when_one_dies(start: Start) -> None:
    program = PLAIN + (
        "began = os.path.join(sys.argv[-1], 'began')\n"
        "if rank == '0': open(began, 'w').close()\n"
        "while not os.path.exists(began): time.sleep(0.01)\n"
        "if rank == '1' and attempt == '0': os.kill(os.getpid(), 9)\n"
        "if attempt == '0': time.sleep(60)\n"
        "print('attempt', attempt)"
    )
    words = "rank 0 in step 7, 1F3; rank 1 in step 7, 1F3"
    shown = start(program, "again", restarts=2)
    assert shown.splitlines() == [
        "rank 0 of 2: again",
        f"a worker died ({words}); starting all again, 1 of 2",
        "rank 0 of 2: again",
        "attempt 1",
    ]


def test_what_prepares_an_attempt_may_end_the_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no layout fits the machines that are left."""
    (tmp_path / "program.py").write_text(
        PLAIN + "if attempt == '0': sys.exit(3)\nprint('not reached')"
    )
    prepared = []

    def prepare(attempt: Attempt) -> str:
        prepared.append(attempt)
        if len(prepared) == 2:
            raise RunFailed("no layout fits")
        return "first"

    program = Program(
        arguments=["x", str(tmp_path)], module="program", imports="colorsys"
    )
    shown = io.StringIO()
    with pytest.raises(RunFailed, match="no layout fits"):
        launch(program, nproc=2, max_restarts=3, output=shown, prepare=prepare)
    assert prepared == [Attempt(ranks=2, machines=1, has_rank_0=True)] * 2
    assert shown.getvalue().startswith("first\n")
    assert "not reached" not in shown.getvalue()


def test_the_packages_are_ours_wherever_the_user_is(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "__init__.py").write_text("raise SystemExit(9)")
    assert start(PLAIN, "here") == "rank 0 of 2: here\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_no_worker_outlives_the_command(
    tmp_path: Path, environment: dict[str, str], number: int, code: int
) -> None:
    """Ctrl-C, a polite end, and a rude one."""
    (tmp_path / "program.py").write_text(
        "from runtime.launch.processes import _end_with_launcher\n"
        "import os, pathlib, sys, time\n"
        "_end_with_launcher()\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).touch()\n"
        "time.sleep(60)\n"
    )
    script = (
        "import sys\n"
        "from profiles.commandline.commands import guarded\n"
        "from runtime.launch.launcher import Program, launch\n"
        f"program = Program(arguments=[{str(tmp_path)!r}], module='program')\n"
        "def started():\n"
        "    launch(program, nproc=2)\n"
        "sys.exit(guarded('execute', started))\n"
    )
    paths = os.pathsep.join([environment["PYTHONPATH"], str(tmp_path)])
    command = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**environment, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
    )
    try:
        wait_for(lambda: all((tmp_path / rank).exists() for rank in "01"))
        command.send_signal(number)
        _, said = command.communicate(timeout=30)
    finally:
        command.kill()
    assert command.returncode == code
    assert b"Traceback" not in said
    wait_for(lambda: alive(tmp_path) == [])


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


@pytest.mark.slow
def test_ranks_meet_again_after_one_was_killed(start: Start) -> None:
    shown = start(AGREE, "1", restarts=1).splitlines()
    assert [line[:13] for line in shown] == ["a worker died", "cpu 1 4"]


@pytest.mark.slow
def test_a_killed_rank_is_the_cause_and_not_those_that_lost_it(start: Start) -> None:
    line = failure(start, AGREE, "1")
    assert line.startswith("rank 1 was killed by SIGKILL")
    assert "in step 2" in line


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(start: Start) -> None:
    program = AGREE.replace("timeout_s=20", "timeout_s=4").replace(
        "os.kill(os.getpid(), signal.SIGKILL)", "__import__('time').sleep(60)"
    )
    line = failure(start, program, "1")
    assert "rank 0 ended with exit code 1 in step 2" in line
    assert "imed out" in line
    assert "rank 1 was in step 2" in line


@pytest.mark.parametrize("ranks", [0, -1, 10**6])
def test_more_ranks_than_can_start_are_refused(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "mkdtemp", None)  # nothing is begun
    with pytest.raises(Contradiction, match="ranks cannot start here"):
        launch(Program(), nproc=ranks)


def test_a_cuda_device_has_one_rank() -> None:
    import torch

    devices = torch.cuda.device_count()
    with pytest.raises(Contradiction, match=f"takes 1 to {devices} "):
        require_startable(devices + 1, device="cuda")


@pytest.mark.parametrize(
    ("nnodes", "endpoint"),
    [
        (2, None),
        (2, "node0"),
        (2, "node0:port"),
        (2, ":29400"),
        (2, "a:70000"),
        (0, None),
    ],
)
def test_several_machines_need_a_place_to_meet(
    nnodes: int, endpoint: str | None
) -> None:
    with pytest.raises(Contradiction, match="HOST:PORT"):
        launch(Program(), nproc=1, machines=Machines(most=nnodes, endpoint=endpoint))


@pytest.mark.slow
def test_two_machines_meet(start: Start, tmp_path: Path, root: Path) -> None:
    """Two launchers, here on one machine, of one rank each."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "program.py").write_text(AGREE)
    script = (
        "from runtime.launch.launcher import Machines, Program, launch\n"
        f"program = Program(arguments=['0', {str(tmp_path)!r}], module='program')\n"
        f"two = Machines(least=2, most=2, endpoint={endpoint!r})\n"
        "launch(program, nproc=1, machines=two)\n"
    )
    paths = os.pathsep.join([str(root), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = [one.communicate(timeout=90)[1].decode() for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sorted(said)[1].startswith("cpu"), gettempdir()
