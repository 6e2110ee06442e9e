"""The ranks that time plain MLPs: whole on each rank, and split over all of them.

`python -m benchmarks.mlp_width_worker request.json`, under the launcher. A layer is two
products with a GELU after each; split, the first by columns and the second by rows
(Megatron-LM, section 3), written by hand in plain PyTorch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.files import decode, read_json, write_text
from runtime.launch.processes import process_group

WARM_UP, LEAST_ROUNDS, ROUND_S = 2, 7, 0.5
COLD_BYTES = 48 << 20  # of all layers' weights: more than a cache holds
FEWEST, MOST = 2, 32  # layers in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every rank is told."""

    widths: tuple[int, ...]
    rows: tuple[int, ...]
    result: str

    def write(self, path: Path) -> None:
        write_text(path, json.dumps(asdict(self)))


class Columns(torch.autograd.Function):
    """x wᵀ + b of a part of the columns; the input's gradient is summed over the ranks
    while the weight's is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        of_input = gradient @ weight
        sent = dist.all_reduce(of_input, async_op=True)
        of_weight, of_bias = gradient.T @ x, gradient.sum(0)
        assert sent is not None
        sent.wait()
        return of_input, of_weight, of_bias


class Summed(torch.autograd.Function):
    """The sum of all ranks' tensors; the gradient is each rank's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Layer(nn.Module):
    """Two products over *ranks*, a GELU after each."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width // ranks)
        self.down = nn.Linear(width // ranks, width)
        self.split = ranks > 1

    def forward(self, x: Tensor) -> Tensor:
        if not self.split:
            return F.gelu(self.down(F.gelu(self.up(x))))
        up, down = self.up, self.down
        inner = F.gelu(Columns.apply(x, up.weight, up.bias))  # type: ignore[no-untyped-call]
        whole = Summed.apply(F.linear(inner, down.weight))  # type: ignore[no-untyped-call]
        return F.gelu(whole + self.down.bias)


def seconds_of(width: int, rows: int, ranks: int) -> float:
    """Median seconds of a layer's forward and backward, all ranks at work."""
    weights = 2 * width * width // ranks * 4
    count = min(max(COLD_BYTES // weights, FEWEST), MOST)
    layers = nn.Sequential(*(Layer(width, ranks) for _ in range(count)))
    step = partial(_once, layers, rows, width)
    for _ in range(WARM_UP):
        took = step()
    rounds = torch.tensor(max(LEAST_ROUNDS, int(ROUND_S / took)))
    dist.broadcast(rounds, src=0)  # as many on every rank
    return median(step() for _ in range(int(rounds))) / count


def _once(layers: nn.Sequential, rows: int, width: int) -> float:
    x = torch.randn(rows, width, requires_grad=True)
    gradient = torch.randn(rows, width)
    layers.zero_grad(set_to_none=True)
    dist.barrier()
    began = time.perf_counter()
    layers(x).backward(gradient)
    dist.barrier()
    return time.perf_counter() - began


def main(path: str) -> None:
    """Carry the request at *path* out in this process."""
    request = decode(read_json(Path(path), what="request"), Request, what="request")
    with process_group(timeout_s=600, threads=1) as worker:
        found = [
            [rows, width, *(seconds_of(width, rows, n) for n in (1, worker.world_size))]
            for rows in request.rows
            for width in request.widths
        ]
        if worker.rank == 0:
            write_text(Path(request.result), json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # as `runtime.launch.worker` does, and for its reason
