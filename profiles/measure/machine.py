"""Facts of the machine that a measurement was taken on."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from profiles.errors import InvalidQuestion

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
    import torch

    if device == "cpu":
        return number in ("fp32", "bf16", "fp16", "fp8")
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
