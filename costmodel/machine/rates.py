"""`Rates`: the few fitted numbers that turn a device's datasheet into seconds.

All of them are fractions of a datasheet figure, or sizes, so that a device without
measurements can borrow them from its kin: the kin's shape of the curve, on the
borrower's own peak, bandwidth and multiprocessors. `benchmarks/calibrate.py` fits
them and writes ``data/rates/<device>.json``; each carries its source and residual.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from profiles.errors import InvalidFile, Unmeasured
from profiles.hardware import Device, Format

RATES = Path(__file__).parents[1] / "data" / "rates"
GENERIC = "generic"
# Products in fp32 run on the plain cores, which power does not throttle: more of a
# lower peak [assumed]; Sailor's fp32 runs on GH200 reach 0.73 of it in the whole step.
PLAIN = 0.93
# Which fit stands for an architecture where neither the device nor its kin has one.
OF_ARCHITECTURE = {
    "volta": "v100-sxm-32gb",
    "turing": "v100-sxm-32gb",
    "ampere": "a100-sxm-80gb",
    "ada": "a100-sxm-80gb",
    "hopper": "h100-sxm-80gb",
    "blackwell": "b200-sxm-180gb",
    "cdna": "mi300x-192gb",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Relative error of a fit on its points: |fitted / measured - 1|.

    `held_out_median` and `held_out_p90` are those of every fifth point when the
    other four are fitted; None where there were too few points to hold any out.
    `points` is 0 where the number is a published one or a derivation, not a fit.
    """

    median: float
    p90: float
    points: int
    held_out_median: float | None = None
    held_out_p90: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRate:
    """Parameters of `compute.matmul_s`.

    `sustained` maps a number format to the fraction of its datasheet peak that the
    largest products reach; a format that is absent has that of `default`.
    """

    sustained: Mapping[str, float]
    default: float
    edge: float  # cost of a tile's two edges, in elements of the tile
    fill_k: float  # steps along k, at 16 bits, that filling a tile's pipeline costs
    wave: float  # how much of a last, partly filled wave is lost: 0 none, 1 all
    bandwidth: float  # fraction of the device's memory bandwidth
    overhead_s: float
    group_s: float  # for each further product of a grouped launch (experts)
    source: str
    residual: Residual

    def sustained_of(self, number: Format) -> float:
        other = PLAIN if number is Format.FP32 else self.default
        return self.sustained.get(number.value, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate:
    """Parameters of `compute.attention_s` for one kernel.

    A kernel that never writes the scores (flash) is priced by `forward` and
    `backward`, fractions of the datasheet peak at long sequences and head size 128,
    `half_head` (the head size at which half of the limit is lost) and the tails: how
    late the last block ends, in full rows of blocks. One that writes them is priced
    by the bytes it moves for each 16-bit score beside its matrix products, and by
    `*_cast_bytes` more where it makes scores of 16 bits fp32 ones for the softmax.
    """

    forward: float = 0.0
    backward: float = 0.0
    half_head: float = 0.0
    forward_tail: float = 0.0
    backward_tail: float = 0.0
    overhead_s: float = 0.0
    forward_bytes_per_score: float = 0.0
    backward_bytes_per_score: float = 0.0
    forward_cast_bytes: float = 0.0
    backward_cast_bytes: float = 0.0
    source: str
    residual: Residual

    @property
    def writes_scores(self) -> bool:
        return self.forward_bytes_per_score > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRate:
    """Parameters of `compute.traffic_s`: kernels bound by memory."""

    fraction: float  # of the device's memory bandwidth
    overhead_s: float
    source: str
    residual: Residual


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Everything fitted about one device. *kin* is whose fit it is, if not its own."""

    device: str
    kin: str | None = None
    matmul: MatmulRate
    traffic: TrafficRate
    attention: Mapping[str, AttentionRate]
    launch_s: float  # host seconds to issue one kernel
    launch_source: str


def rates_of(device: Device) -> Rates:
    """The rates of *device*: its own fit, its kin's, its architecture's, or generic.

    Raises InvalidFile if a rates file is damaged, Unmeasured if none is installed.
    """
    for name in _names(device):
        if (RATES / f"{name}.json").exists():
            found = load_rates(name)
            own = name == _slug(device.name) or name in map(_slug, device.aliases)
            return replace(found, device=device.name, kin=found.kin if own else name)
    raise Unmeasured(
        f"no rates for {device.name}, its kin {device.kin} or a generic device in "
        f"{RATES}; reinstall, or fit them with benchmarks/calibrate.py"
    )


@lru_cache(maxsize=32)
def load_rates(name: str) -> Rates:
    """Read ``data/rates/<name>.json``."""
    path = RATES / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rates)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidFile(f"{path} does not hold rates: {error}") from error


def _names(device: Device) -> Iterator[str]:
    yield _slug(device.name)
    yield from map(_slug, device.aliases)
    if device.kin is not None:
        yield _slug(device.kin)
    for architecture, name in OF_ARCHITECTURE.items():
        if device.architecture.lower().startswith(architecture):
            yield name
    yield GENERIC


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
