"""A process that has imported all that a worker needs, and forks workers.

Importing torch is most of what starting a worker takes, so a run that may be restarted
pays for it once. torch's agent starts a client in place of each worker: a few lines of
the standard library, run by the path of this file. It hands its output files,
environment and folder to the server, passes signals on, and ends as the worker ends.

    launcher ─ server ─ workers, forked, each in a session of its own
            └ agent ─ clients

Who loses its parent is killed: the server with the launcher, workers with the server,
and the worker of a client that was killed. A client that finds no server becomes the
worker itself.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

SOCKET: Final = "fork-server"
SERVE: Final = "serve"  # the first argument of the server; a client's is a folder
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PARENT_DEATH: Final = 1  # PR_SET_PDEATHSIG of prctl(2)
_LENGTH: Final = struct.Struct("!Q")
_STATUS: Final = struct.Struct("!i")


def cold(module: str, arguments: list[str]) -> list[str]:
    """The interpreter's arguments that run *module* by itself; -P: our packages, not
    what is in the working folder."""
    return ["-P", "-m", module, *arguments]


def client(folder: Path, module: str, arguments: list[str]) -> list[str]:
    """The interpreter's arguments that run *module* in a worker of the server whose
    socket is in *folder*."""
    return ["-I", "-S", str(Path(__file__)), str(folder), module, *arguments]


def listening(folder: Path) -> socket.socket:
    """The socket in *folder*, which nobody else may enter, that a server listens on."""
    made = socket.socket(socket.AF_UNIX)
    with Reached(folder) as place:
        made.bind(place.name)
    made.listen(128)
    return made


@dataclass(slots=True)
class Reached:
    """A folder's socket by a name that is short enough for any folder."""

    folder: Path
    _file: int = -1

    def __enter__(self) -> Reached:
        self._file = os.open(self.folder, os.O_PATH)
        return self

    def __exit__(self, *ended: object) -> None:
        os.close(self._file)

    @property
    def name(self) -> str:
        return f"/proc/self/fd/{self._file}/{SOCKET}"


def ask(folder: str, module: str, arguments: list[str]) -> NoReturn:
    """Be the worker's stand-in: ends as it does."""
    server = socket.socket(socket.AF_UNIX)
    request = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    text = json.dumps(request).encode()

    def pass_on(number: int, _: Any) -> None:
        server.send(bytes([number]))

    with suppress(OSError):
        with Reached(Path(folder)) as place:
            server.connect(place.name)
        socket.send_fds(server, [b"+"], [1, 2])
        server.sendall(_LENGTH.pack(len(text)) + text)
    if not _all_of(server, 1):  # it is not there, or ended before it forked
        os.execv(sys.executable, [sys.executable, *cold(module, arguments)])
    for number in PASSED_ON:
        signal.signal(number, pass_on)
    status = _all_of(server, _STATUS.size)
    code = _STATUS.unpack(status)[0] if status else -signal.SIGKILL
    if code >= 0:
        os._exit(code)
    _end_by(-code)


def _end_by(number: int) -> NoReturn:
    """End by a signal, as the worker did, and leave its core file to it."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _all_of(stream: socket.socket, size: int) -> bytes:
    """So many bytes; none where the other side is gone."""
    found = b""
    with suppress(OSError):
        while len(found) < size:
            piece = stream.recv(size - len(found))
            if not piece:
                return b""
            found += piece
    return found


@dataclass(slots=True, kw_only=True, eq=False)
class _Forked:
    """A worker: its process, and the client that stands for it."""

    pid: int
    process: int  # a file that can be read once the process has ended
    client: socket.socket

    def signalled(self) -> bool:
        """What the client passes on is sent; False once the client is gone."""
        passed = _all_of(self.client, 1)
        with suppress(ProcessLookupError):
            os.kill(self.pid, passed[0] if passed else signal.SIGKILL)
            os.kill(self.pid, signal.SIGCONT)  # one that is stopped would not see it
        return bool(passed)

    def reaped(self) -> None:
        """Tell the client how the worker ended."""
        _, status = os.waitpid(self.pid, 0)
        with suppress(OSError):
            self.client.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))
        os.close(self.process)
        self.client.close()


@dataclass(slots=True)
class Server:
    """Forks a worker for each client that comes, until it is told to end."""

    door: socket.socket
    workers: list[_Forked] = field(default_factory=list)
    _ready: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def serve(self) -> NoReturn:
        """Until SIGTERM; no worker is left then."""
        told, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell)  # a handler would come in the middle of anything
        signal.signal(signal.SIGTERM, lambda *_: None)
        for readable in (told, self.door):
            self._ready.register(readable, selectors.EVENT_READ)
        while True:
            for key, _ in self._ready.select():
                if key.fileobj == told:
                    self._end()
                elif key.fileobj is self.door:
                    self._admit(self.door.accept()[0])
                elif key.data not in self.workers:
                    continue  # reaped a moment ago
                elif key.fileobj is key.data.client:
                    if not key.data.signalled():
                        self._ready.unregister(key.data.client)
                else:
                    self._reap(key.data)

    def _admit(self, client: socket.socket) -> None:
        came, files, _, _ = socket.recv_fds(client, 1, 2)
        size = _all_of(client, _LENGTH.size) if came and len(files) == 2 else b""
        text = _all_of(client, _LENGTH.unpack(size)[0]) if size else b""
        server, held = os.getpid(), {signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, held)  # it is for this process alone
        pid = os.fork() if text else -1
        if pid == 0:
            self._become(json.loads(text), server, client, files)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        for file in files:
            os.close(file)
        if pid < 0:
            client.close()
            return
        one = _Forked(pid=pid, process=os.pidfd_open(pid), client=client)
        self.workers.append(one)
        with suppress(OSError):
            client.sendall(b"+")
        for readable in (one.client, one.process):
            self._ready.register(readable, selectors.EVENT_READ, one)

    def _reap(self, one: _Forked) -> None:
        self._ready.unregister(one.process)
        with suppress(KeyError):
            self._ready.unregister(one.client)
        one.reaped()
        self.workers.remove(one)

    def _end(self) -> NoReturn:
        for one in self.workers:
            os.kill(one.pid, signal.SIGKILL)
        for one in self.workers:
            os.waitpid(one.pid, 0)
        os._exit(0)

    def _become(
        self,
        request: dict[str, Any],
        server: int,
        client: socket.socket,
        files: list[int],
    ) -> NoReturn:
        """The worker, in the forked process."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            self._ready.close()
            for one in (self.door, client, *(one.client for one in self.workers)):
                one.close()
            for other in self.workers:
                os.close(other.process)
            for number, file in enumerate(files, 1):
                os.dup2(file, number)
                os.close(file)
            for signalled in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signalled, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            code = _run(request, server)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else ended.code is not None
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _run(request: dict[str, Any], server: int) -> int:
    import runpy

    from runtime.launch.failures import LAUNCHER

    os.setsid()
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    os.environ.clear()
    os.environ.update(request["environment"], **{LAUNCHER: str(server)})
    module = request["module"]
    sys.argv = [module, *request["arguments"]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def main(door: str, launcher: str, imports: str) -> NoReturn:
    """The server: import all that the module *imports* needs, then fork workers."""
    import ctypes
    import gc
    from importlib import import_module

    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != int(launcher):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: for the launcher
    import_module(imports)
    del sys.modules[imports]  # to be run anew, which then imports nothing
    gc.collect()
    gc.freeze()  # no collection in a worker touches, and so copies, what is here
    Server(socket.socket(fileno=int(door))).serve()


if __name__ == "__main__":
    if sys.argv[1] == SERVE:
        main(*sys.argv[2:])
    ask(sys.argv[1], sys.argv[2], sys.argv[3:])
