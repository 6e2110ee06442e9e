"""One measuring process: `python -m profiles.measure.worker REQUEST RESULT`.

Its rank comes from the environment, as under a launcher. A node's first one says on
stdout how far it is, a line a sample: seconds gone, and of how many.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from profiles.heap import keep_heap
from profiles.measure.survey import survey
from profiles.measure.tasks import Request


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
            keep_heap()  # as `runtime.processes` does
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
