"""The network of PyTorch's AMP recipe: how much faster autocast makes its step.

    python -m benchmarks.amp_recipe [--cluster hgx-h200] [--device cuda]

Three linear layers of 4096 with a ReLU between them, batches of 512, SGD, a scaled
loss; in fp32 on the plain cores, tf32 being off (PyTorch's recipes/amp_recipe). The
prediction is for a device of the cluster, without the loss, which is of 2 million
numbers; with --device the same is timed on this one.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import nn

from benchmarks.fit.layer_price import layer_price
from benchmarks.plain_mlp import plain_mlp
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.kernels import traffic_s
from costmodel.stages.data_parallelism import DataParallel
from costmodel.stages.optimizer_step import accumulated, updated
from profiles.errors import MeshwrightError
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.units import MS

LAYERS, WIDTH, ROWS = 3, 4096, 512
PLAIN, AUTOCAST = "fp32", "amp-fp16"
ROUNDS, WARM_UP = 50, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds of a step in fp32 and under autocast."""

    plain_s: float
    autocast_s: float

    @property
    def speed_up(self) -> float:
        return self.plain_s / self.autocast_s


def predicted(on: Machine, plain: str = PLAIN) -> Pair:
    """The prices of both steps."""
    return Pair(plain_s=_step_s(on, plain), autocast_s=_step_s(on, AUTOCAST))


def _step_s(on: Machine, number: str) -> float:
    found = layer_price(
        plain_mlp(WIDTH, LAYERS, "relu", last=False),
        on,
        number,
        seq_len=1,
        micro_batch=ROWS,
    )
    one, policy = np.ones(()), precision(number)
    alone = DataParallel(tp=one, cp=one, dp=one, zero=0 * one, zero_group=one)
    step = (found.parameters, alone, policy, on)
    seconds = found.forward_s + found.backward_s
    seconds = seconds + accumulated(*step).seconds + updated(*step, "sgd").seconds
    if policy.cast_cache is not None:  # the scaler reads and writes every gradient
        moved = 2 * policy.gradient.bytes * found.parameters
        seconds = seconds + traffic_s(moved, device=on.device, rates=on.rates)
    return float(seconds)


def measured(device: str, width: int = WIDTH, rows: int = ROWS) -> Pair:
    """Both steps timed on *device*, the median of the rounds."""
    torch.backends.cuda.matmul.allow_tf32 = False
    half = torch.float16 if device == "cuda" else torch.bfloat16
    plain_s, autocast_s = (
        _timed(device, width, rows, half, on=on) for on in (False, True)
    )
    return Pair(plain_s=plain_s, autocast_s=autocast_s)


def _timed(device: str, width: int, rows: int, half: torch.dtype, *, on: bool) -> float:
    steps = [nn.Linear(width, width) for _ in range(LAYERS)]
    layers = [one for step in steps for one in (step, nn.ReLU())][:-1]
    network = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, enabled=on and device == "cuda")
    given, wanted = (torch.randn(rows, width, device=device) for _ in range(2))
    seen = []
    for _ in range(WARM_UP + ROUNDS):
        began = _now(device)
        with torch.autocast(device, dtype=half, enabled=on):
            loss = nn.functional.mse_loss(network(given), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append(_now(device) - began)
    return median(seen[WARM_UP:])


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", default="hgx-h200")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    wish = parser.parse_args()
    try:
        on = machine(cluster(wish.cluster))
    except MeshwrightError as error:
        parser.error(str(error))
    _show(f"{on.device.name}, predicted", predicted(on))
    if wish.device is not None:
        _show(f"{wish.device}, measured", measured(wish.device))


def _show(what: str, found: Pair) -> None:
    print(
        f"{what}: fp32 {found.plain_s / MS:.2f} ms, autocast "
        f"{found.autocast_s / MS:.2f} ms, {found.speed_up:.2f} times as fast"
    )


if __name__ == "__main__":
    main()
