"""`runtime.launch.fork_server`: a forked worker is started, signalled and ends as one
that starts by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.launch.fork_server import SERVE, client, cold, listening

Stand = Callable[..., subprocess.Popen[str]]
PROGRAM = """
import os, signal, sys, time
print("parent", os.getppid(), "green" if "COLOUR" in os.environ else "", *sys.argv[1:])
sys.stdout.flush()
what, number = sys.argv[1], int(sys.argv[2])
if what == "exit": sys.exit(number)
if what == "signal": os.kill(os.getpid(), number)
if what == "raise": raise ValueError("no such thing")
time.sleep(number)
"""


@pytest.fixture
def server(
    tmp_path: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """One whose workers find the module `program`."""
    (tmp_path / "program.py").write_text(PROGRAM)
    with listening(tmp_path) as door:
        words = [SERVE, str(door.fileno()), str(os.getpid()), "colorsys"]
        started = subprocess.Popen(
            [sys.executable, *cold("runtime.launch.fork_server", words)],
            env=_environment(tmp_path, environment),
            pass_fds=[door.fileno()],
        )
    yield started
    started.terminate()
    assert started.wait(10) in (0, -signal.SIGKILL)


@pytest.fixture
def stand_in(tmp_path: Path, environment: dict[str, str]) -> Stand:
    """Starts the client of a worker, in a folder and an environment of its own."""

    def starting(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *client(tmp_path, "program", list(map(str, arguments)))],
            env={**_environment(tmp_path, environment), "COLOUR": "green"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return starting


def _environment(place: Path, environment: dict[str, str]) -> dict[str, str]:
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(place)]),
    }


def children(of: int) -> list[int]:
    """The processes that *of* started, and that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            state, parent, *_ = words
            if int(parent) == of and state != "Z":
                found.append(int(entry.name))
    return found


def soon(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("what", "number", "code"),
    [
        ("exit", 0, 0),
        ("exit", 3, 3),
        ("raise", 0, 1),
        ("signal", signal.SIGKILL, -signal.SIGKILL),
        ("signal", signal.SIGTERM, -signal.SIGTERM),
        ("signal", signal.SIGSEGV, -signal.SIGSEGV),
    ],
)
def test_a_client_ends_as_its_worker(
    server: subprocess.Popen[bytes],
    stand_in: Stand,
    what: str,
    number: int,
    code: int,
) -> None:
    one = stand_in(what, int(number))
    out, err = one.communicate(timeout=20)
    assert one.returncode == code
    assert out == f"parent {server.pid} green {what} {int(number)}\n"
    assert ("ValueError: no such thing" in err) == (what == "raise")


def test_workers_stand_beside_each_other_and_take_their_signals(
    server: subprocess.Popen[bytes], stand_in: Stand
) -> None:
    both = [stand_in("sleep", 60) for _ in range(2)]
    soon(lambda: len(children(server.pid)) == 2)
    both[0].terminate()
    assert both[0].wait(20) == -signal.SIGTERM
    assert len(children(server.pid)) == 1
    both[1].kill()
    soon(lambda: children(server.pid) == [])
    for one in both:
        one.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_worker_ends_with_its_client(
    server: subprocess.Popen[bytes], stand_in: Stand, number: int
) -> None:
    one = stand_in("sleep", 60)
    soon(lambda: len(children(server.pid)) == 1)
    os.kill(children(server.pid)[0], signal.SIGSTOP)
    one.send_signal(number)
    assert one.wait(20) == -number
    soon(lambda: children(server.pid) == [])
    one.communicate()


def test_no_worker_outlives_the_server(
    server: subprocess.Popen[bytes], stand_in: Stand
) -> None:
    one = stand_in("sleep", 60)
    soon(lambda: len(children(server.pid)) == 1)
    worker = children(server.pid)[0]
    server.terminate()
    assert server.wait(20) == 0
    assert one.wait(20) == -signal.SIGKILL
    assert not Path(f"/proc/{worker}").exists()
    one.communicate()


@pytest.mark.slow
def test_what_is_imported_before_the_fork_has_no_thread_and_no_device(
    environment: dict[str, str],
) -> None:
    script = (
        "import os, torch, runtime.launch.worker\n"
        "print(len(os.listdir('/proc/self/task')), torch.cuda.is_initialized())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "False"]


def test_without_a_server_the_client_is_the_worker(
    tmp_path: Path, stand_in: Stand
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    one = stand_in("exit", 5)
    assert one.communicate(timeout=20)[0].startswith(f"parent {os.getpid()} green")
    assert one.returncode == 5
