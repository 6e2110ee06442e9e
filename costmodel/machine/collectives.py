"""Seconds of collectives and sends over the levels of an island.

For N bytes of the full tensor, k ranks in q domains (nodes) of r members,

    wire      the bytes one rank sends: (k-1)/k N for an all-gather       → _wire
    rate      r shares of the domain's NICs, capped by the fast fabric    → _ring_rate
    latency   hops inside a domain, a tree over domains                   → _latency_s
    ring      what gathers or scatters has no tree: k - 1 steps of a hop   → _ring_s
    seconds   latency + (wire + sqrt(half wire)) / rate                   → _streamed_s
    rails     alone between domains: what is for another one goes through the domain
              first (Wang et al., HOTI 2024); rings stay on theirs       → _exchange_s

`half` is the message at which half of the bandwidth is reached. An all-reduce is a
reduce-scatter and an all-gather, but for the hops of their rings over domains. More
bytes never cost less; more ranks never cost less either while the members of a domain
stay the same, or the group stays in one switched domain (where links are direct, more
ranks have more links).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.machine.rates import RATES, Residual
from profiles.errors import InvalidFile, UnknownName
from profiles.hardware import Island, Level
from profiles.units import MiB

Floats = NDArray[np.float64]
SLICE_BYTES = MiB / 2  # NCCL's buffer of 4 MiB has 8 slots (NCCL_BUFFSIZE, NCCL_STEPS)


class Collective(StrEnum):
    """What a group does together; N is the full tensor, as DTensor counts it."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"  # N is what one rank holds before (and after)
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """How much of a link's datasheet bandwidth collectives reach, and how soon.

    `training` multiplies the bandwidth inside a training step, where other traffic,
    stragglers and the compute kernels take their part; 1 prices a stand-alone test.
    `direct` is 0 behind a switch. Where links join devices directly, r of a domain's
    d members use ((r - 1)/(d - 1))**direct of a rank's links: 1 if every pair has its
    own link (a full mesh), less where some links always lead out of the group.
    """

    name: str
    fraction: float  # of ring collectives, in a stand-alone test
    send_fraction: float  # of one send
    exchange_fraction: float  # of an all-to-all
    half_bytes: float
    launch_s: float  # once a collective
    hop_s: float  # each further rank (inside a domain) or tree level (across)
    # A step of a ring over domains: into another one, or inside of one.
    ring_hop_s: float = 0.0
    training: float
    direct: float = 0.0
    node_bytes_per_s: float | None = None  # what a node's flows reach together, if less
    flow_bytes_per_s: float | None = None  # what one of them reaches
    source: str
    training_source: str
    residual: Residual


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """The inner (fast) and the outer link of an island, fitted rates with datasheet."""

    inner: LinkRate
    outer: LinkRate
    inner_bytes_per_s: float
    outer_bytes_per_s: float
    domain: int
    devices_per_port: float = 1.0  # of the outer link
    rails: bool = False  # which join like devices of domains alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFile:
    """What links.json holds."""

    rates: Mapping[str, LinkRate]
    kinds: Mapping[str, str]  # "kind" or "kind/architecture" → key of rates
    default: str


def link_rates(island: Island) -> LinkRates:
    """The fitted rates of the innermost and the outermost level of *island*.

    A level whose latency is longer than the fitted ones (a link between sites) keeps
    its own.
    """
    inner, outer = island.levels[0], island.levels[-1]
    architecture = island.device.architecture.lower()
    near, far = _rate_of(inner, architecture), _rate_of(outer, architecture)
    wait_s = outer.latency_s
    return LinkRates(
        inner=replace(near, launch_s=max(near.launch_s, inner.latency_s)),
        outer=replace(
            far, launch_s=max(far.launch_s, wait_s), hop_s=max(far.hop_s, wait_s)
        ),
        inner_bytes_per_s=inner.bytes_per_s,
        outer_bytes_per_s=_reached(outer.bytes_per_s, far, island.domain),
        domain=island.domain,
        devices_per_port=island.domain / (outer.ports or island.domain),
        rails=outer.rails,
    )


def _reached(bytes_per_s: float, rate: LinkRate, domain: int) -> float:
    """A device's share of its node's network: of the port, or of what flows reach."""
    if rate.node_bytes_per_s is None:
        return bytes_per_s
    return min(bytes_per_s, rate.node_bytes_per_s / domain)


def collective_s(
    kind: Collective | str,
    size_bytes: ArrayLike,
    *,
    ranks: ArrayLike,
    ranks_per_node: ArrayLike,
    rates: LinkRates,
    alone: bool = False,
    shares: ArrayLike = 1.0,
    pieces: ArrayLike = 1.0,
) -> Floats:
    """Seconds of *kind* over *ranks* ranks, *ranks_per_node* of them in each domain.

    *size_bytes* is the full tensor (of an all-to-all: what one rank holds). *alone*
    leaves out the in-training factors, as a stand-alone benchmark does. One rank is
    free. All groups that the node's other devices form are taken to run at once: each
    rank has its own share of the NICs and no more; or so many *shares*, where fewer
    speak (`placement.shares`). In *pieces*, each goes round the ring; of an all-reduce
    or an all-to-all each starts anew.

    Raises UnknownName for a kind that is not a `Collective`.
    """
    collective = _collective(kind)
    size = _floats(size_bytes)
    k, r = _floats(ranks), np.minimum(_floats(ranks_per_node), _floats(ranks))
    share = 1.0 - 1.0 / np.maximum(k, 1.0)
    own = _own(shares, rates)
    once = _latency_s(k, r, rates)
    if collective is Collective.ALL_TO_ALL:
        seconds = _floats(pieces) * once + _exchange_s(size, k, r, rates, alone, own)
    elif collective is Collective.BROADCAST:
        seconds = once + _streamed_s(size, k, r, rates, alone, own)
    else:
        whole = collective is Collective.ALL_REDUCE
        passes, starts = (2.0, _floats(pieces)) if whole else (1.0, 1.0)
        wire = share * size
        streamed = _streamed_s(wire, k, r, rates, alone, own)
        if passes == 1.0:
            # A step that is longer than a slice is handed on while it still comes in.
            steps = _floats(pieces) * np.maximum(k - 1.0, 1.0)
            slices = np.minimum(wire, steps * SLICE_BYTES)
            first = _streamed_s(slices, k, r, rates, alone, own)
            hops = _floats(pieces) * _ring_s(k, r, rates)
            streamed = np.maximum(streamed, hops + first)
        seconds = passes * (starts * once + streamed)
    return np.where(k > 1.0, seconds, 0.0)


def send_s(
    size_bytes: ArrayLike,
    *,
    same_node: ArrayLike,
    rates: LinkRates,
    alone: bool = False,
    shares: ArrayLike = 1.0,
    changes_rail: ArrayLike = False,
) -> Floats:
    """Seconds of one point-to-point transfer, inside a domain or between two: then with
    so many devices' *shares* of a domain's NICs (`placement.shares`). Those that send
    through one port at once fill it together, unless each flow has a limit. What
    *changes_rail* goes through the domain to the device on its rail first."""
    size = _floats(size_bytes)
    near = _sent_s(size, rates.inner, rates.inner_bytes_per_s, alone)
    own = _own(shares, rates)
    limited = rates.outer.flow_bytes_per_s is not None
    crowd = 1.0 if limited else rates.devices_per_port
    flows = np.maximum(crowd / _floats(shares), 1.0)
    far = _sent_s(size, rates.outer, own, alone, flows)
    far = far + np.where(np.asarray(changes_rail, dtype=bool), near, 0.0)
    return np.where(np.asarray(same_node, dtype=bool), near, far)


def _collective(kind: Collective | str) -> Collective:
    try:
        return Collective(kind)
    except ValueError:
        raise UnknownName("collective", kind, Collective) from None


def _own(shares: ArrayLike, rates: LinkRates) -> Floats:
    """Bytes a second out of a domain of a rank with so many devices' *shares*."""
    least = rates.outer_bytes_per_s
    most = max(rates.outer.flow_bytes_per_s or np.inf, least)
    return np.minimum(least * _floats(shares), most)


def _sent_s(
    size: Floats,
    rate: LinkRate,
    bytes_per_s: float | Floats,
    alone: bool,
    flows: ArrayLike = 1.0,
) -> Floats:
    """One of so many *flows* through a port, each at its part of the port's bandwidth:
    together they reach what rings do, and with as many bytes as one alone."""
    most = max(rate.fraction, rate.send_fraction)
    fraction = np.minimum(rate.send_fraction * _floats(flows), most)
    bandwidth = bytes_per_s * fraction * (1.0 if alone else rate.training)
    half_bytes = rate.half_bytes / _floats(flows)
    return rate.launch_s + (size + np.sqrt(half_bytes * size)) / bandwidth


def _streamed_s(
    wire: Floats, k: Floats, r: Floats, rates: LinkRates, alone: bool, own: Floats
) -> Floats:
    inner, outer = rates.inner, rates.outer
    near = _near(inner.fraction, r, rates, alone)
    far = r * own * _usable(outer.fraction, outer, alone)
    across = k > r
    rate = np.where(across, np.where(r > 1.0, np.minimum(near, far), far), near)
    half = _half_bytes(across, r, rates)
    return (wire + np.sqrt(half * wire)) / np.maximum(rate, 1.0)


def _exchange_s(
    size: Floats, k: Floats, r: Floats, rates: LinkRates, alone: bool, own: Floats
) -> Floats:
    """An all-to-all: each rank sends 1/k of its bytes to every other one."""
    inner, outer = rates.inner, rates.outer
    near = _near(inner.exchange_fraction, r, rates, alone)
    own = own * _usable(outer.exchange_fraction, outer, alone)
    far = np.where(r > 1.0, np.minimum(near, own), own)
    k, across = np.maximum(k, 1.0), k > r
    inside, outside = size * (r - 1.0) / k, size * (k - r) / k
    half = _half_bytes(across, r, rates)
    filling = np.sqrt(half * (inside + outside)) / np.where(across, far, near)
    forwarded = outside * (r - 1.0) / np.maximum(r, 1.0) * rates.rails
    return (inside + forwarded) / near + outside / far + filling


def _half_bytes(across: NDArray[np.bool_], r: Floats, rates: LinkRates) -> Floats:
    inner, outer = rates.inner.half_bytes, rates.outer.half_bytes
    # Across domains the bytes cross both links, and the larger message counts.
    return np.where(across, np.where(r > 1.0, max(inner, outer), outer), inner)


def _latency_s(k: Floats, r: Floats, rates: LinkRates) -> Floats:
    """One pass: a hop for each further member, one for each level of the node tree."""
    inner, outer = rates.inner, rates.outer
    nodes = np.maximum(k / np.maximum(r, 1.0), 1.0)
    within = np.where(r > 1.0, inner.launch_s, 0.0) + inner.hop_s * (r - 1.0)
    across = np.where(nodes > 1.0, outer.launch_s, 0.0) + outer.hop_s * np.log2(nodes)
    return within + across


def _ring_s(k: Floats, r: Floats, rates: LinkRates) -> Floats:
    """The hops of a ring over domains. NCCL gathers and scatters by rings, of k - 1
    steps, and has trees for all-reduces."""
    nodes = np.maximum(k / np.maximum(r, 1.0), 1.0)
    outside = (nodes - 1.0) * rates.outer.ring_hop_s
    inside = (nodes - 1.0) * (r - 1.0) * rates.inner.ring_hop_s
    return outside + inside


def _near(fraction: float, r: Floats, rates: LinkRates, alone: bool) -> Floats:
    """Bytes a second one rank sends inside its domain."""
    usable = _usable(fraction, rates.inner, alone) * rates.inner_bytes_per_s
    return usable * _links(r, rates)


def _links(r: Floats, rates: LinkRates) -> Floats:
    """The share of a rank's direct links that lead to its group; 1 through a switch."""
    if not rates.inner.direct or rates.domain < 3:
        return np.ones_like(r)
    least = 1.0 / (rates.domain - 1.0)
    share: Floats = np.clip((r - 1.0) * least, least, 1.0) ** rates.inner.direct
    return share


def _usable(fraction: float, rate: LinkRate, alone: bool) -> float:
    return fraction * (1.0 if alone else rate.training)


def _rate_of(level: Level, architecture: str) -> LinkRate:
    table = link_file()
    kind = level.kind.lower()
    for key, name in table.kinds.items():
        wanted, _, generation = key.partition("/")
        if wanted == kind and architecture.startswith(generation):
            return table.rates[name]
    return table.rates[table.default]


def unknown_kinds(levels: Iterable[Level]) -> Iterator[str]:
    """Levels of a kind that has no rates: what they are priced as, in words."""
    table = link_file()
    known = sorted({key.partition("/")[0] for key in table.kinds})
    for level in levels:
        if level.kind.lower() not in known:
            yield (
                f"level {level.name!r} is a link of kind {level.kind!r}, which has no "
                f"rates: priced like {table.default}; known: {', '.join(known)}"
            )


@lru_cache(maxsize=1)
def link_file() -> LinkFile:
    path = RATES / "links.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=LinkFile)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidFile(f"{path} does not hold link rates: {error}") from error


def _floats(value: ArrayLike) -> Floats:
    return np.asarray(value, dtype=np.float64)
