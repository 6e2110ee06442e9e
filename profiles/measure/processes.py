"""Measuring processes of this machine: started together, and never left behind.

One measuring process: `python -m profiles.measure.processes REQUEST RESULT`.

Its rank comes from the environment, as under a launcher. A node's first one says on
stdout how far it is, a line a sample: seconds gone, and of how many.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from profiles.errors import RunFailed
from profiles.measure.survey import Result, survey
from profiles.measure.timing import Request
from profiles.system import keep_heap
from profiles.units import GiB, MiB

Progress = Callable[[float, float], None]
ROOT = Path(__file__).resolve().parents[2]
# glibc's allocator as it is after some steps of training: what is freed stays mapped,
# and only tensors above its largest threshold are fresh pages each time.
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * MiB),
    "MALLOC_TRIM_THRESHOLD_": str(64 * GiB),
}
GRACE_S = 2.0
WATCH_S = 0.05


def run(
    request: Request,
    progress: Progress,
    *,
    node: int = 0,
    interface: str | None = "lo",
) -> tuple[Result, ...]:
    """The results of this *node*'s ranks, in their order.

    gloo speaks over *interface* unless the environment says otherwise; None: it asks
    for the machine's name.

    Raises RunFailed, naming the rank and its last words, where one dies or none
    comes back in time.
    """
    import msgspec

    with TemporaryDirectory(prefix="meshwright-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "request.json").write_bytes(msgspec.json.encode(request))
        first = node * request.local_ranks
        local = range(first, first + request.local_ranks)
        shared = _environment(request, interface)
        ranks = {
            rank: stack.enter_context(_process(folder, rank, shared)) for rank in local
        }
        _watch(ranks, folder, request, progress)
        return tuple(
            msgspec.json.decode((folder / f"{rank}.json").read_bytes(), type=Result)
            for rank in local
        )


@contextmanager
def _process(
    folder: Path, rank: int, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """One rank, which is gone when this is left; its stdin says that we are here."""
    files = str(folder / "request.json"), str(folder / f"{rank}.json")
    with (
        (folder / f"{rank}.out").open("wb") as out,
        (folder / f"{rank}.err").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "profiles.measure.processes", *files],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=errors,
            env={**environment, "RANK": str(rank)},
            start_new_session=True,  # Ctrl-C is for us: we end them
        ) as process,
    ):
        try:
            yield process
        finally:
            _end(process)


def _environment(request: Request, interface: str | None) -> dict[str, str]:
    """What all ranks find in their environment."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    spoken = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
    return {
        **spoken,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        **_ALLOCATOR,
        "OMP_NUM_THREADS": str(request.threads),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    if process.poll() is None:
        process.kill()


def _watch(
    ranks: dict[int, subprocess.Popen[bytes]],
    folder: Path,
    request: Request,
    progress: Progress,
) -> None:
    end_s = time.monotonic() + request.timeout_s
    while True:
        codes = {rank: process.poll() for rank, process in ranks.items()}
        failed = [rank for rank, code in codes.items() if code]
        if failed:  # a signal came first, errors of the others follow from it
            first = min(failed, key=lambda rank: (codes[rank] or 0) > 0)
            raise RunFailed(_last_words(first, codes[first] or 0, folder))
        _report(folder / f"{min(ranks)}.out", progress)
        if all(code == 0 for code in codes.values()):
            return
        if time.monotonic() > end_s:
            raise RunFailed(
                f"measuring took longer than {request.timeout_s:.0f} s and was ended; "
                "measure fewer shapes: give --model, or a smaller --global-batch"
            )
        time.sleep(WATCH_S)


def _report(said: Path, progress: Progress) -> None:
    lines = said.read_text(errors="replace").splitlines()
    with suppress(ValueError, IndexError):
        done, of, *_ = lines[-1].split()
        progress(float(done), float(of))


def _last_words(rank: int, code: int, folder: Path) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    text = (folder / f"{rank}.err").read_text(errors="replace").strip()
    said = text.splitlines()[-1] if text else "it said nothing"
    return f"measuring rank {rank} {how}: {said}"


def main(request_file: str, result_file: str) -> None:
    """Carry the request out and leave this rank's result beside it."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    import msgspec

    request = msgspec.json.decode(Path(request_file).read_bytes(), type=Request)
    rank = int(os.environ["RANK"])
    with_group = _Group(request, rank)
    try:
        result = survey(
            request, with_group, _silent if rank % request.local_ranks else _say
        )
        Path(result_file).write_text(json.dumps(asdict(result)))
    finally:
        with_group.leave()


class _Group:
    """The ranks of this measurement; alone, it needs no communication."""

    def __init__(self, request: Request, rank: int) -> None:
        import torch

        self.device = request.device
        self.ranks, self.rank = request.ranks, rank
        torch.set_num_threads(request.threads)
        if self.device == "cpu":
            keep_heap()  # as `runtime.launch.processes` does
        if self.device == "cuda":
            torch.cuda.set_device(rank % request.local_ranks)
        if self.ranks > 1:
            self._join(request)

    def _join(self, request: Request) -> None:
        import torch.distributed as dist

        timeout = timedelta(seconds=request.timeout_s)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self.device == "cuda" else "gloo",
            store=_store(request, timeout),
            rank=self.rank,
            world_size=self.ranks,
            timeout=timeout,
        )
        self.control: Any = dist.new_group(backend="gloo")

    def barrier(self) -> None:
        if self.ranks > 1:
            import torch.distributed as dist

            dist.barrier(group=self.control)

    def largest(self, *values: float) -> tuple[float, ...]:
        if self.ranks == 1:
            return values
        import torch
        import torch.distributed as dist

        together = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(together, op=dist.ReduceOp.MAX, group=self.control)
        return tuple(together.tolist())

    def leave(self) -> None:
        if self.ranks > 1:
            import torch.distributed as dist

            dist.destroy_process_group()


def _store(request: Request, timeout: timedelta) -> Any:
    """Where the ranks find each other: a file, or what the nodes' commands met in."""
    from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

    if request.nodes == 1:
        return FileStore(request.rendezvous, request.ranks)
    host, _, port = request.rendezvous.rpartition(":")
    store = TCPStore(host, int(port), is_master=False, timeout=timeout)
    return PrefixStore("ranks", store)


def _die_with_parent() -> None:
    """The parent holds our stdin; when it closes, nobody waits for the answer."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _say(done_s: float, of_s: float) -> None:
    sys.stdout.write(f"{done_s:.2f} {of_s:.2f}\n")
    sys.stdout.flush()


def _silent(done_s: float, of_s: float) -> None:
    pass


if __name__ == "__main__":
    main(*sys.argv[1:])
