"""A product that is always the same: how fast is this machine just now?

Its seconds during a measurement are kept with the samples (`Samples.machine`, under
`CALIBRATION`), so that whoever runs later can tell a slower hour of the machine from a
wrong prediction.
"""

from __future__ import annotations

import time

from profiles.measure.tensors import Tensor

CALIBRATION = "calibration seconds"
ROWS, COLUMNS, CONTRACTED = 512, 1024, 1024  # 2·m·n·k: about a GFLOP


class Calibration:
    """The product's operands on *device*; `run` multiplies them once."""

    def __init__(self, device: str = "cpu") -> None:
        import torch

        self.device = device
        self.left = torch.full((ROWS, CONTRACTED), 0.5, device=device)
        self.right = torch.full((CONTRACTED, COLUMNS), 0.5, device=device)

    def run(self) -> Tensor:
        return self.left @ self.right


def calibration_s(device: str = "cpu", repeats: int = 5) -> float:
    """Seconds of the product in this process now: the fastest of *repeats*.

    By the clock that `profile` times operators with: a lone thread's CPU time.
    """
    import torch

    alone = device == "cpu" and torch.get_num_threads() == 1
    now = time.thread_time if alone else time.perf_counter
    product = Calibration(device)
    seconds = []
    for _ in range(repeats + 1):  # the first one loads code
        started_s = now()
        product.run()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(now() - started_s)
    return min(seconds[1:])
