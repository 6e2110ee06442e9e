"""`Traffic`: how much was or will be sent, by mesh axis and collective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Name = tuple[str, str]  # (axis, collective)


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many collectives, and the bytes of their full tensors together."""

    count: int = 0
    size_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.count + other.count, self.size_bytes + other.size_bytes)


Entry = tuple[Name, Traffic]
Exchanged = Mapping[Name, Traffic]


def merged(entries: Iterable[Entry]) -> Exchanged:
    """The entries of one name together."""
    total: dict[Name, Traffic] = {}
    for name, traffic in entries:
        total[name] = total.get(name, Traffic()) + traffic
    return total
