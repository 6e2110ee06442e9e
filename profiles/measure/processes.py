"""Measuring processes of this machine: started together, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from profiles.errors import RunFailed
from profiles.measure.survey import Result
from profiles.measure.tasks import Request
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
            [sys.executable, "-P", "-m", "profiles.measure.worker", *files],
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
