"""Spare nodes: how often all that are needed are there.

Nodes fail apart from each other, once in M each, and are back after a repair of r on
average. A failed one's place is taken by one of S spares; without a spare the job goes
on with up to J nodes fewer, at lower speeds, or waits for the next repair. While it
runs, the number k of broken nodes is a birth and death process (Erlang's loss system):

    π(k) ∝ Π_(i<k) n(i) r / (M (i + 1)),    n(i) nodes at work,    k = 0 … S + J

and a failure that finds k = S + J waits r / (S + J + 1). Where the job waits (J = 0)
the goodput of both is exactly their product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from costmodel.training_run.goodput import FailureModel


@dataclass(frozen=True, kw_only=True)
class Pool:
    """*nodes* at work with so many *spares*; *fewer* are the speeds, as shares of the
    whole, with one node fewer, two fewer …"""

    nodes: int
    spares: int
    mtbf_s: float  # of a node
    repair_s: float
    fewer: tuple[float, ...] = ()

    @property
    def most(self) -> int:
        """Broken nodes with which the job still runs."""
        return self.spares + len(self.fewer)

    def at_work(self, broken: int) -> int:
        return self.nodes - max(0, broken - self.spares)

    def speed(self, broken: int) -> float:
        missing = broken - self.spares
        return self.fewer[missing - 1] if missing > 0 else 1.0

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """π: of the time that the job runs, with each number of broken nodes."""
        weights = list(accumulate(self._ratios(), lambda a, b: a * b, initial=1.0))
        whole = sum(weights)
        return tuple(one / whole for one in weights)

    def _ratios(self) -> Iterator[float]:
        for broken in range(self.most):
            yield self.at_work(broken) * self.repair_s / (self.mtbf_s * (broken + 1))

    @cached_property
    def running(self) -> float:
        """The share of time in which the job does not wait for a node."""
        blocked = self.shares[-1] * self.at_work(self.most) / self.mtbf_s
        return 1 / (1 + blocked * self.repair_s / (self.most + 1))

    def goodput(self, job: FailureModel, interval_s: float) -> float:
        """Of *job*, on these nodes; each return to more nodes is a restart."""
        found = 0.0
        for broken, share in enumerate(self.shares):
            there = job.failing(self.mtbf_s / self.at_work(broken))
            missing = broken > self.spares
            returns = broken / self.repair_s * job.restart_s if missing else 0.0
            good = self.speed(broken) * there.goodput(interval_s)
            found += share * good / (1 + returns)
        return self.running * found
