"""What no pipeline of unlike stages takes less than: the bound of the certificate.

A stage s of t_s = f_s + b_s seconds has w stages from it to the end, which hold the
layers from k on, on the last d devices; x_i is the way from stage i to the next one
and back, R_s the sum Σ (t + x) from s to the end. 1F1B runs m micro-batches forward and
backward at s; before its first, a micro-batch goes forward through the stages before
it, and after its last, one backward. With B = Σ_{i<s} (t_i + x_i):

    along    T ≥ B + m · t_s + update_s
    late     T ≥ Σ_{i<s} (f_i + x_i / 2) + m · t_s + late_s + update_s
    windows  T ≥ B + (1 + n) · R_s + r · t_s
    filling  T ≥ B + R_s + (m − 1) · b_s + (m − min(w, m)) · f_s + update_s

A stage's gradients are summed behind its last backward, for late_s longer than that
takes, and no rank steps before all have reduced: then parameters are updated; late_0 is
in B. A stage sends w micro-batches before the first comes back: of the other
m − 1 = n · w + r some wait for n trips, and r pass (where n > 0).

Where s is the last stage of an island, m micro-batches go over the link behind it, one
behind another. And it takes turns there with the next stage: it sends a micro-batch
when the one before the last is back. With w − 2 behind them, and m + 1 − w = 2n + r,

    link     T ≥ B + R_s + (m − 1) · x_s / 2
    turns    T ≥ B + (1 + n) · (t_s + x_s + t_{s+1}) + (w − 2) · max(t_s, x_s)
                   + r · max(t_s, x_s / 2)

and windows with r · x_s / 2, too; likewise by what the first stage of an island takes.
Each side of a link is known to take its own part or more: x is their mean.

Whether any pipeline takes no more than T is asked of all cuts at once, by the programme
of `partition`: least R over w stages none of which breaks T, each of what fits with
min(w, m) micro-batches in flight; for B stands the least of any cut of the first k
layers on the other devices. T is found by halving.

Before anything is priced, a step takes what its matrix products do at the sustained
rate (`costmodel.machine.kernels`), spread over all devices as is best (`spread_s`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from math import inf
from typing import Final

import numpy as np

from costmodel.machine import Machine
from costmodel.simulation import operator_flops
from planner.heterogeneous.candidates import (
    BACKWARD,
    FORWARD,
    GATHER,
    REDUCE,
    STEP,
    Kind,
    Stages,
)
from planner.heterogeneous.partition import Partition, cuts, spelled
from planner.problem import Problem, orders
from profiles.arrays import Array
from profiles.hardware import Format, precision
from profiles.models import PRODUCTS
from profiles.samples import number_of

CLOSE: Final = 5e-3  # of the bound: halving stops there
Late = Callable[[], bool]  # whether time is over


def never() -> bool:
    return False


def root_bound_s(problem: Problem) -> float:
    """Seconds that no layout takes less than; next to nothing where samples price
    products, which know no sustained rate."""
    step_s = problem.machine.step_s
    if problem.machine.measured is not None:
        return step_s
    places = next(orders(problem))
    works = [_products_s(problem, place.machine) for place in places]
    return spread_s(works, [place.devices for place in places]) + step_s


def spread_s(works: Sequence[Array], devices: Sequence[int]) -> float:
    """Seconds in which all *devices* do what takes *works* device-seconds at each of
    several places, spread as is best.

    T ≥ Σ min over places of  w · work  for any weights w of the devices that sum to 1,
    by duality: each as fast as it is.
    """
    rate = sum(
        many / float(work.sum()) for work, many in zip(works, devices, strict=True)
    )
    return float(np.min([work / work.sum() for work in works], axis=0).sum()) / rate


def _products_s(problem: Problem, on: Machine) -> Array:
    """Device-seconds of each product of the model in a step, forward and backward."""
    job, number = problem.job, precision(problem.precision)
    return np.array(
        [
            count
            * (2 if item.frozen else 3)
            * operator_flops(item, block, job)
            / _rate(on, number_of(item, number))
            for block, count in job.graph.blocks
            for item in block.operators
            if item.kind in PRODUCTS
        ]
    )


def _rate(on: Machine, number: Format) -> float:
    """FLOPs a second of the largest products in that format."""
    sustained = on.rates.matmul.sustained_of(number)
    return sustained * on.device.peak_flops_per_s(number)


class Bound:
    """What no pipeline of *stages* takes less than; those in the middle update for
    *tied_s* less, which the two ends take on top for a table that they share."""

    def __init__(self, stages: Stages, tied_s: float = 0.0) -> None:
        self.stages = stages
        found = np.array([one.stages_s() for one in stages.options])
        forward_s, backward_s, reduce_s, step_s, gather_s = (
            found[:, row] for row in (FORWARD, BACKWARD, REDUCE, STEP, GATHER)
        )
        update_s = step_s + np.maximum(gather_s - forward_s, 0.0)
        middle_s = update_s[:, 1:, :-1]
        np.maximum(middle_s - tied_s, 0.0, out=middle_s)
        late_s = np.maximum(reduce_s - backward_s, 0.0)
        m = stages.micro_batches
        self._forward_s, self._both_s = forward_s, forward_s + backward_s
        self._along_s = m * self._both_s + update_s
        self._late_s = self._along_s + late_s
        late_s[:, 1:] = 0.0  # the pipeline's last pass is the first stage's
        self._first_s = self._both_s + late_s
        self._backward_s = (m - 1) * backward_s + update_s + late_s
        self._known: dict[int, dict[Kind, Array]] = {}

    def seconds(
        self,
        *,
        at_least_s: float = 0.0,
        at_most_s: float,
        number: int | None = None,
        late: Late = never,
    ) -> tuple[float, list[Partition]]:
        """The largest number up to *at_most_s* known to be less than any pipeline of
        that *number* of stages takes, within `CLOSE`: *at_least_s* is one; looser once
        it is *late*. And partitions that it did not rule out at the last: likely
        ones."""
        low, high, left = at_least_s, at_most_s, list[Partition]()
        most_s = high  # asked first: whether there is anything to be halved for
        while not late():
            found = self._possible(most_s, number)
            if found:
                high, left = most_s, found
            elif most_s == at_most_s:
                return at_most_s, []
            else:
                low = most_s
            most_s = (low + high) / 2
            if high - low <= CLOSE * high:
                break
        return low, left

    def _possible(self, most_s: float, number: int | None) -> list[Partition]:
        """Partitions that break no bound with *most_s*; none only if there are none."""

        def allowed(count: int, kind: Kind, rows: Array, sums: Array) -> Array:
            return np.asarray(self._longest_s(count, kind, rows, sums) <= most_s)

        def taken_s(in_flight: int) -> list[Array]:
            return [one[0] for one in self._least(in_flight).values()]

        found = cuts(self.stages, taken_s, allowed, number)
        return [spelled(self.stages, one) for one in found]

    def _longest_s(self, count: int, kind: Kind, rows: Array, sums: Array) -> Array:
        """[first layer, of *rows*, `kind.left`] → the longest path by a stage of *kind*
        that ends with the layers of *rows* and is the *count*-th from the end, with
        *sums* to there."""
        m, shortest_s = self.stages.micro_batches, self._shortest_s
        both_s, along_s, late_s, filling_s = (
            one[:, rows, None] for one in self._least(min(count, m))[kind]
        )
        before_s, there_s = (one[:, None, kind.left] for one in self._before)
        trips, passed = divmod(m - 1, count)
        waited_s = (1 + trips) * sums
        longest_s = np.maximum(sums + filling_s, along_s)
        np.maximum(
            longest_s,
            waited_s + passed * both_s if trips and passed else waited_s,
            out=longest_s,
        )
        here_s, (sent_s, received_s) = both_s[:, :, 0], self._links_s[kind]
        if count > 1 and sent_s < inf:
            next_s = np.append(shortest_s, inf)[rows + 1]
            turns_s = self._turns_s(here_s, sent_s, next_s, count - 2)
            for link_s in (
                turns_s + next_s + sent_s,
                sums[:, :, 0] + (m - 1) * sent_s / 2,
                waited_s[:, :, 0] + passed * sent_s / 2,
            ):
                np.maximum(longest_s[:, :, 0], link_s, out=longest_s[:, :, 0])
        if received_s < inf:
            next_s = np.append(inf, shortest_s[:-1])[:, None]
            turns_s = self._turns_s(here_s, received_s, next_s, count - 1)
            turns_s = np.maximum(longest_s[:, :, -1], turns_s)
            longest_s[:, :, -1] = turns_s + kind.ways.arrived_s / 2
        return np.asarray(np.maximum(before_s + longest_s, there_s + late_s))

    def _least(self, in_flight: int) -> dict[Kind, Array]:
        """Of stages with so many micro-batches in flight, by kind [4, first, last] → t,
        m · t + update, the same with what is late, and what fills the pipeline."""
        if in_flight not in self._known:
            waiting = self.stages.micro_batches - in_flight
            filling_s = self._backward_s + waiting * self._forward_s
            values = self._both_s, self._along_s, self._late_s, filling_s
            every = [self.stages.least(one, in_flight) for one in values]
            found = map(np.array, zip(*every, strict=True))
            self._known[in_flight] = dict(zip(self.stages.kinds, found, strict=True))
        return self._known[in_flight]

    def _turns_s(
        self, both_s: Array, way_s: float, next_s: Array, behind: int
    ) -> Array:
        """What a stage of *both_s* takes that takes turns with one of *next_s* over a
        link, with so many stages *behind* those that have as much in flight besides."""
        behind = min(behind, self.stages.micro_batches - 1)
        trips, passed = divmod(self.stages.micro_batches - 1 - behind, 2)
        found = both_s
        if trips:
            found = found + trips * (both_s + way_s + next_s)
        if trips and passed:
            found = found + np.maximum(both_s, way_s / 2)
        if behind:
            found = found + behind * np.maximum(both_s, way_s)
        return found

    @cached_property
    def _links_s(self) -> dict[Kind, tuple[float, float]]:
        """Of each kind the way to the next island and from the one before, there and
        back, at the least; infinite where there is none."""
        found = dict.fromkeys(self.stages.kinds, (inf, inf))
        for one, two in product(found, repeat=2):
            if one.fewest - one.size == two.most:
                way_s = (one.ways.crossed_s + two.ways.arrived_s) / 2
                found[one] = min(found[one][0], way_s), found[one][1]
                found[two] = found[two][0], min(found[two][1], way_s)
        return found

    @cached_property
    def _shortest_s(self) -> Array:
        """What each layer takes alone at the least."""
        return np.asarray(np.min([one.both_s for one in self.stages.options], axis=0))

    @cached_property
    def _before(self) -> tuple[Array, Array]:
        """[layers, devices to the end] → the least sums over stages that hold the
        layers before, on the other devices: there and back, and there."""
        both, forward = (
            self.stages.least(self._first_s, 1),
            self.stages.least(self._forward_s, 1),
        )
        return self._sums(both, 1.0), self._sums(forward, 0.5)

    def _sums(self, taken_s: Sequence[Array], share: float) -> Array:
        layers, units = self.stages.layers, self.stages.units
        found = np.full((layers + 1, units + 1), inf)
        found[0, units] = 0.0
        for first in range(layers):
            for kind, one_s in zip(self.stages.kinds, taken_s, strict=True):
                sums = found[first, kind.left] + one_s[first, first:, None]
                sums += share * kind.ways.sent_s
                sums[:, 0] += share * (kind.ways.crossed_s / 2 - kind.ways.sent_s)
                if kind.most < units:
                    sums[:, -1] += share * kind.ways.arrived_s / 2
                there = found[first + 1 :, kind.behind]
                np.minimum(there, sums, out=there)
        return found[:-1]
