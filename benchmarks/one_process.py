"""What `nn.DataParallel` costs its one interpreter: forwards in threads, and copies.

    python benchmarks/one_process.py

Forwards of tensors so small that all of their time is the host's, in one thread and in
several at once; and the Python copies of a model's modules, as they are made for every
replica and forward. `costmodel.report.data_parallel_baseline` takes its figures from
here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from threading import Barrier, Thread
from time import perf_counter
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import replicate

LAYERS = 8
ROUNDS = 7
FORWARDS = 30


def model() -> nn.Module:
    """Layers of ten modules each, too small to compute anything of note."""
    layers = (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        for _ in range(LAYERS)
    )
    return nn.Sequential(*layers).train()


def forwards_s(threads: int) -> float:
    """Seconds until each of so many threads has made a forward of its own."""
    models, tokens = [model() for _ in range(threads)], torch.randn(1, 4, 8)
    start = Barrier(threads + 1)

    def run(own: nn.Module) -> None:
        start.wait()
        for _ in range(FORWARDS):
            own(tokens)

    workers = [Thread(target=run, args=(own,)) for own in models]
    for worker in workers:
        worker.start()
    start.wait()
    begun = perf_counter()
    for worker in workers:
        worker.join()
    return (perf_counter() - begun) / FORWARDS


def copies_s(replicas: int) -> float:
    """Seconds of copying a module in Python, for each replica; nothing is sent."""
    room = sys.modules[replicate.__module__]
    found, whole = [], model()
    modules = len(list(whole.modules()))
    with (
        mock.patch.object(
            room,
            "_broadcast_coalesced_reshape",
            lambda tensors, devices, detach=False: [list(tensors) for _ in devices],
        ),
        mock.patch.object(room, "_get_device_index", lambda device, _: device),
    ):
        for _ in range(20):
            begun = perf_counter()
            replicate(whole, list(range(replicas)))
            found.append(perf_counter() - begun)
    return median(found) / modules / replicas


def of_rounds(measure: Callable[[], float]) -> float:
    """The median of several rounds."""
    return median(measure() for _ in range(ROUNDS))


def main() -> None:
    """Print both."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}")
    alone_s = of_rounds(lambda: forwards_s(1))
    print(f"a forward in one thread: {alone_s * 1e3:.2f} ms")
    ratio = of_rounds(lambda: forwards_s(2)) / alone_s
    print(f"two threads with a forward each: {ratio:.2f} times as long")
    for replicas in (2, 4, 8):
        seconds = of_rounds(lambda count=replicas: copies_s(count))
        print(f"{replicas} replicas: {seconds * 1e6:.1f} µs a module and replica")


if __name__ == "__main__":
    main()
