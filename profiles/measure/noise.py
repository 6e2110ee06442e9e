"""How quiet it was: a fixed product timed now and then, and who else was busy.

A product that is always the same: how fast is this machine just now?

Its seconds during a measurement are kept with the samples (`Samples.machine`, under
`CALIBRATION`), so that whoever runs later can tell a slower hour of the machine from a
wrong prediction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from profiles.measure.timing import Tensor

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


STAT = Path("/proc/stat")
# An idle machine repeats a training step within 1-4 %, one with a second load within
# 11-33 % (both measured on two cores); between them lies what is worth a warning.
MOST_SPREAD = 0.10
MOST_OTHERS = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Seconds since the machine started that its cores worked, and when this was."""

    busy_s: float
    at_s: float

    @classmethod
    def now(cls) -> Busy:
        """Cores' seconds in anything but idling; 0 where the kernel does not say."""
        return cls(busy_s=_busy_s(), at_s=time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """`spread` of the calibration, and the share of all cores that `others` used."""

    spread: float
    drift: float
    others: float

    def __lt__(self, other: Noise) -> bool:
        """Whether it was quieter."""
        return max(self.spread, self.others) < max(other.spread, other.others)

    @property
    def noisy(self) -> bool:
        return self.spread > MOST_SPREAD or self.others > MOST_OTHERS

    def __str__(self) -> str:
        """For a person and for the file.

        >>> print(Noise(spread=0.02, drift=-0.01, others=0.3))
        noisy: calibration spread 2.0 %, drift -1.0 %, others used 30.0 % of the cores
        """
        return (
            f"{'noisy' if self.noisy else 'quiet'}: calibration spread "
            f"{self.spread:.1%}, drift {self.drift:.1%}, others used "
            f"{self.others:.1%} of the cores"
        ).replace("%", " %")


def noise(
    calibrations: Sequence[float], before: Busy, after: Busy, own_cpu_s: float
) -> Noise:
    """Judge a measurement that took *own_cpu_s* of the cores between two looks."""
    wall_s = max(after.at_s - before.at_s, 1e-9) * (os.cpu_count() or 1)
    others_s = after.busy_s - before.busy_s - own_cpu_s
    half = max(len(calibrations) // 2, 1)
    first, last = median(calibrations[:half]), median(calibrations[-half:])
    return Noise(
        spread=spread(calibrations),
        drift=last / first - 1,
        others=min(max(others_s / wall_s, 0.0), 1.0),
    )


def spread(seconds: Sequence[float]) -> float:
    """The interquartile range over the median.

    >>> spread([1.0, 2.0, 3.0])
    0.5
    """
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    return float((high - low) / middle)


def _busy_s() -> float:
    try:
        fields = STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()
        ticks = [int(field) for field in fields[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
