"""The machine that a measurement is taken on: its facts, and how quiet it was."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

from profiles.errors import InvalidQuestion, InvalidSpec
from profiles.hardware import device_names
from profiles.measure.timing import Request, Tensor
from profiles.units import MiB, parse_bytes

MEMORY = Path("/proc/meminfo")
PROCESSORS = Path("/proc/cpuinfo")
BOOT = Path("/proc/sys/kernel/random/boot_id")
RDMA = Path("/sys/class/infiniband")
# From which compute capability on matrix units take a format (CUDA C++ Programming
# Guide, "Compute Capabilities"; fp8 as `torch._scaled_mm` requires it).
CAPABILITIES = {
    "fp32": (0, 0),
    "fp16": (0, 0),
    "bf16": (8, 0),
    "tf32": (8, 0),
    "fp8": (8, 9),
}
GPU_MARKS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
ASSUMED_CACHE = 32 * MiB  # where the kernel does not say
_MEMORY = re.compile(r"\d+gb")
_BOARD = re.compile(r"(sxm|pcie)\d*")
CALIBRATION = "calibration seconds"
# Rows, columns and contracted: a GFLOP on a CPU; on a GPU some 70, a millisecond or
# two, since what takes microseconds there tells of launches.
SIZES = {"cpu": (512, 1024, 1024), "cuda": (2048, 4096, 4096)}
STAT = Path("/proc/stat")
# An idle machine repeats a training step within 1-4 %, one with a second load within
# 11-33 % (both measured on two cores); between them lies what is worth a warning.
MOST_SPREAD = 0.10
MOST_OTHERS = 0.10


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """The processor as the kernel names it.

    >>> bool(cpu_name())
    True
    """
    found = re.search(r"^model name\s*:\s*(.+)$", _text(PROCESSORS), re.MULTILINE)
    return found.group(1).strip() if found else os.uname().machine


def memory_bytes(what: str = "MemAvailable") -> float:
    """RAM in bytes: available, or `MemTotal`."""
    found = re.search(rf"^{what}:\s*(\d+) kB$", _text(MEMORY), re.MULTILINE)
    if found:
        return float(found.group(1)) * 1024
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def boot() -> str:
    """What tells this machine, since it was started, from every other one."""
    return _text(BOOT).strip() or os.uname().nodename


def network(device: str) -> str:
    """What joins this machine to others: gloo speaks TCP, NCCL uses what is there."""
    has_rdma = RDMA.is_dir() and any(RDMA.iterdir())
    return "infiniband" if device == "cuda" and has_rdma else "ethernet"


def gpus() -> tuple[str, ...]:
    """Names of the GPUs that PyTorch can use; torch is loaded only if one may be."""
    if not any(Path(mark).exists() for mark in GPU_MARKS):
        return ()
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    )


def rank_memory_bytes(device: str, ranks: int) -> float:
    """Memory that one of *ranks* can use: its part of the RAM, or its GPU's."""
    if device == "cpu":
        return memory_bytes() / ranks
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory)


def multiplies(number: str, device: str) -> bool:
    """Whether the *device* of this machine, cpu or cuda, has products in the format
    *number*: of CUDA devices the first one by its compute capability.

    PyTorch has products of 8-bit floats for every CPU, which are right and slow.
    """
    if device == "cpu":
        return number in ("fp32", "bf16", "fp16", "fp8")
    import torch

    return bool(torch.cuda.get_device_capability(0) >= CAPABILITIES[number])


def slug(name: str) -> str:
    """A name for keys: lower case, words joined by dashes.

    >>> slug("AMD EPYC 7B13 64-Core Processor"), slug("Intel(R) Xeon(R) CPU @ 2.20GHz")
    ('amd-epyc-7b13-64-core-processor', 'intel-r-xeon-r-cpu-2.20ghz')
    """
    joined = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
    if not joined:
        raise InvalidQuestion(f"the device's name {name!r} has no letters")
    return joined[:80]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def facts(request: Request) -> dict[str, str]:
    """Versions, device, and the name of the software for the keys of operators."""
    import torch

    known = {
        "torch": torch.__version__,
        "software": f"torch-{torch.__version__}/{request.threads}-threads",
        "device": "cpu",
        "collectives": "gloo" if request.device == "cpu" else "nccl",
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
    }
    return known if request.device == "cpu" else {**known, **_of_gpu()}


def cache_bytes(device: str) -> float:
    """Bytes of the largest cache that a core of this device reads through."""
    if device == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(0)
        return float(getattr(properties, "L2_cache_size", ASSUMED_CACHE))
    found = [_size(path) for path in CACHES.glob("index*/size")]
    return max(found, default=float(ASSUMED_CACHE))


def _size(path: Path) -> float:
    """A cache's size as Linux writes it: ``32768K``."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        return parse_bytes(text.replace("K", "KiB").replace("M", "MiB"))
    except (OSError, InvalidSpec):
        return float(ASSUMED_CACHE)


def _of_gpu() -> dict[str, str]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    # GPUs reach each other's memory over NVLink
    several = torch.cuda.device_count() > 1
    reached = several and torch.cuda.can_device_access_peer(0, 1)
    found = {
        "device": properties.name,
        "gpu": properties.name,
        "software": f"torch-{torch.__version__}",
        "cuda": str(torch.version.cuda),
        "architecture": f"sm-{properties.major}{properties.minor}",
        "device memory bytes": str(properties.total_memory),
        "multiprocessors": str(properties.multi_processor_count),
        "fabric": "nvlink" if reached else "pcie",
    }
    if torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def device_name(name: str) -> str:
    """The catalogue's name, or one made of PyTorch's where it has none.

    A name without ``PCIe`` in it is the module's, as vendors leave that out.

    >>> device_name("NVIDIA H100 80GB HBM3"), device_name("NVIDIA A100-SXM4-40GB")
    ('H100-SXM-80GB', 'A100-SXM-40GB')
    >>> device_name("NVIDIA H100 PCIe"), device_name("NVIDIA Thing X1")
    ('H100-PCIe-80GB', 'nvidia-thing-x1')
    """
    words, boards, sizes = _parts(name)
    alike = {
        one: memory
        for one in device_names()
        for model, board, memory in (_parts(one),)
        if model <= words and (not board or board & (boards or {"sxm"}))
    }
    found = [one for one, memory in alike.items() if sizes & memory] or list(alike)
    return found[0] if len(found) == 1 else slug(name)


def _parts(name: str) -> tuple[set[str], set[str], set[str]]:
    """The words of a device's name (h100; rtx, 4090), its board and its memory."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    memory = {word for word in words if _MEMORY.fullmatch(word)}
    boards = {word: match for word in words if (match := _BOARD.fullmatch(word))}
    return words - memory - {*boards}, {one[1] for one in boards.values()}, memory


class Calibration:
    """The product's operands on *device*; `run` multiplies them once."""

    def __init__(self, device: str = "cpu") -> None:
        import torch

        self.device = device
        rows, columns, contracted = SIZES[device.partition(":")[0]]
        self.left = torch.full((rows, contracted), 0.5, device=device)
        self.right = torch.full((contracted, columns), 0.5, device=device)

    def run(self) -> Tensor:
        return self.left @ self.right


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
