"""Which ranks form which group, and over which links each group speaks.

Ranks are numbered as Megatron does: tp fastest, then cp, then data parallelism (the
shard group before its replicas), then the pipeline. A group whose members lie *stride*
apart has `domain // stride` of them in one fast domain (a node, or an NVL72 rack).

How many switches a network takes (Wang et al., HOTI 2024; rail-only networks).

A folded Clos network of full bisection of switches with k ports joins

    k endpoints by 1 switch, k²/2 by 3E/k in two tiers, k³/4 by 5E/k in three.

A rail-only network is one such network a rail, each with one device of every domain;
what is for another rail goes through the domain
(`costmodel.machine.topology.changes_rail`).
"""

from __future__ import annotations

from math import ceil

import numpy as np

from profiles.arrays import Array
from profiles.errors import InvalidSpec
from profiles.hardware import Island


def switches(endpoints: int, ports: int) -> int:
    """Of a network of full bisection with so many *endpoints*.

    >>> switches(64, ports=64), switches(2048, ports=64), switches(32768, ports=64)
    (1, 96, 2560)

    Raises InvalidSpec for more than three tiers join.
    """
    if endpoints < 1 or ports < 2:
        raise InvalidSpec(
            f"{endpoints} endpoints, switches of {ports} ports; one and two at least"
        )
    if endpoints <= ports:
        return 1
    if endpoints <= ports**2 // 2:
        return ceil(3 * endpoints / ports)
    if endpoints <= ports**3 // 4:
        return ceil(5 * endpoints / ports)
    raise InvalidSpec(
        f"three tiers of switches with {ports} ports join {ports**3 // 4:,} endpoints, "
        f"not {endpoints:,}; take switches with more ports"
    )


def rail_only_switches(devices: int, domain: int, ports: int) -> int:
    """Of rails alone, between fast domains of *domain* devices.

    Raises InvalidSpec as `switches` does, and where domains are not whole.
    """
    if domain < 1 or devices % domain:
        raise InvalidSpec(f"devices={devices} is not a multiple of domain={domain}")
    return domain * switches(devices // domain, ports)


def near_members(stride: Array, size: Array, island: Island) -> Array:
    """How many members of a group of *size* share a fast domain.

    The largest divisor of *size* that fits, so that every domain holds as many.
    """
    size = np.asarray(size)
    room = np.maximum(island.domain // np.maximum(np.asarray(stride), 1), 1)
    return _largest_divisor(size, np.minimum(room, size))


def _largest_divisor(size: Array, most: Array) -> Array:
    """Largest divisor of *size* that is at most *most*, elementwise."""
    if np.all(size % most == 0):  # as nearly always: powers of two
        return np.asarray(most)
    found: Array = np.ones(np.broadcast(size, most).shape, dtype=np.int64)
    for candidate in range(2, int(np.max(most, initial=1)) + 1):
        fits = (size % candidate == 0) & (candidate <= most)
        found = np.where(fits, candidate, found)
    return found


def always_crosses(stride: Array, island: Island) -> Array:
    """Whether all neighbours of a pipeline *stride* apart lie in unlike domains."""
    return np.asarray(stride) >= island.domain


def changes_rail(stride: Array, island: Island) -> Array:
    """Whether what pipeline ranks *stride* apart send from domain to domain is for
    another rail than the sender's, where rails are all that joins domains."""
    off = np.asarray(stride) % island.domain != 0
    return np.asarray(off & island.levels[-1].rails)


def shares(stride: Array, island: Island) -> Array:
    """A transfer's part of what leaves a domain, in shares of one device.

    Of pipeline ranks *stride* apart as many pairs speak at once as lie side by side in
    a domain; the others send at other times, or inside. Each has one port at most.
    """
    pairs = np.minimum(np.asarray(stride), island.domain)
    ports = island.levels[-1].ports or island.domain
    return np.asarray(island.domain / np.maximum(pairs, ports))
