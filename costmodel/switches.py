"""How many switches a network takes (Wang et al., HOTI 2024; rail-only networks).

A folded Clos network of full bisection of switches with k ports joins

    k endpoints by 1 switch, k²/2 by 3E/k in two tiers, k³/4 by 5E/k in three.

A rail-only network is one such network a rail, each with one device of every domain;
what is for another rail goes through the domain (`costmodel.placement.changes_rail`).
"""

from __future__ import annotations

from math import ceil

from profiles.errors import InvalidSpec


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
