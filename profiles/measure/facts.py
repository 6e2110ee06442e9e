"""What a measuring process knows of the software and device beneath it."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import InvalidSpec
from profiles.measure.tasks import Request
from profiles.units import MiB, parse_bytes

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
ASSUMED_CACHE = 32 * MiB  # where the kernel does not say


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
    found = {
        "device": properties.name,
        "gpu": properties.name,
        "software": f"torch-{torch.__version__}",
        "cuda": str(torch.version.cuda),
        "architecture": f"sm-{properties.major}{properties.minor}",
        "device memory bytes": str(properties.total_memory),
        "multiprocessors": str(properties.multi_processor_count),
        "fabric": "nvlink" if _reach_each_other() else "pcie",
    }
    if torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def _reach_each_other() -> bool:
    """Whether GPUs reach each other's memory, as over NVLink they do."""
    import torch

    several = torch.cuda.device_count() > 1
    return several and bool(torch.cuda.can_device_access_peer(0, 1))
