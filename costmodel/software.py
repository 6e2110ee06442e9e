"""`Software`: whose code runs the layout, as far as it changes the price.

Overlap is the framework's, not the network's: Megatron-Core hides gradient reduction
behind the last backward, classic Megatron-LM and DeepSpeed hide none of it; FSDP hides
what compute leaves time for. Every framework issues kernels from one host thread, which
puts a floor under a layer's time. `data/frameworks.json` holds them, with sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from costmodel.footprint import PLAIN, Footprint, footprints
from profiles.device import Device
from profiles.errors import UnknownName
from profiles.units import MB, US

CATALOGUE: Final = Path(__file__).parent / "data" / "frameworks.json"
DEFAULT: Final = "meshwright"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A framework. `*_host_us` are host microseconds to issue one operator of the graph
    forward, or backward (autograd's C++ thread, two products).

    `overlap` names what is hidden: `grad`, `param`, `p2p`, `offload` (copies to a host
    and back). `gradient_format` is what 16-bit training accumulates gradients in;
    `reduce` what travels: the accumulated `gradient`, or `half-or-fp32`: fp16 gradients
    as they are, bf16 ones as fp32.
    `stops_early`: full recompute ends when the last tensor that backward needs is made.
    Without `scatters_sends` every tp rank sends a pipeline's whole boundary tensor.
    `fully_shard`: ZeRO is PyTorch's, which keeps shards beside what it gathered.
    `flash` and `unfused` are the attention kernels with and without flash attention.
    `footprint`: what it keeps in memory beyond what the mathematics needs.
    Of experts: `expert_traffic` multiplies the bytes that sorting rows moves over those
    of fused kernels, `exposed_expert` is the share of exchanging rows that nothing
    hides, and `sends_once` that a token goes but once to a rank (DeepEP).
    """

    name: str
    forward_host_us: float
    backward_host_us: float
    overlap: frozenset[str]
    gradient_format: str = "fp32"
    reduce: str = "gradient"
    accumulation: str = "separate"  # or fused into the weight gradient's product
    flash: str = "flash-2"
    unfused: str = "fused-softmax"
    fused_norm: bool = True
    expert_traffic: float = 1.0
    exposed_expert: float = 1.0
    sends_once: bool = False
    stops_early: bool = False
    fully_shard: bool = False
    scatters_sends: bool = True
    bucket_bytes: float = 25 * MB  # PyTorch DDP's default
    footprint: Footprint = PLAIN
    source: str = ""

    @property
    def forward_host_s(self) -> float:
        return self.forward_host_us * US

    @property
    def backward_host_s(self) -> float:
        return self.backward_host_us * US


@dataclass(frozen=True, slots=True, kw_only=True)
class _Catalogue:
    frameworks: list[Software]
    spellings: list[tuple[str, str]]  # what tables print → whose price it is


@lru_cache(maxsize=1)
def _catalogue() -> _Catalogue:
    return msgspec.json.decode(CATALOGUE.read_bytes(), type=_Catalogue)


@lru_cache(maxsize=1)
def frameworks() -> dict[str, Software]:
    """Every framework by name."""
    habits = footprints()
    return {
        item.name: replace(item, footprint=habits.get(item.name, PLAIN))
        for item in _catalogue().frameworks
    }


def software(name: str) -> Software:
    """The framework called *name*; raises UnknownName."""
    known = frameworks()
    if name.lower() in known:
        return known[name.lower()]
    raise UnknownName("framework", name, known)


def software_of_run(printed: str) -> Software:
    """The nearest known framework to what a published run printed.

    Unknown ones are priced as the default; the caller says so.
    """
    text = printed.lower()
    for spelling, name in _catalogue().spellings:
        if spelling in text:
            return software(name)
    return software(DEFAULT)


def shares_cores(device: Device) -> bool:
    """Whether ranks on *device* communicate with the cores that compute: CPU ranks."""
    return device.architecture.lower() == "cpu"


def software_on(base: Software, device: Device) -> Software:
    """*base* as it runs on *device*: where cores are shared, nothing is hidden."""
    return with_overlap(base, frozenset()) if shares_cores(device) else base


def with_overlap(base: Software, overlap: frozenset[str]) -> Software:
    """The same framework hiding just *overlap*."""
    return replace(base, overlap=overlap)
