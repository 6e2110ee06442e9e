"""What no pipeline over several places goes below: what is on its way between them, and
how long each stage waits for it.

To cut bounds (`stage_bound`) this adds what 1F1B does with slow links. A stage with w
stages from it to the end sends w micro-batches before the first comes back; of the
other m − 1 = n · w + r, some wait for n trips, and r pass the slowest stage before
(r counts where there is a trip to wait for, here and below):

    T ≥ Σ_{i<s} (t_i + x_i) + (1 + n) · Σ_{i≥s} (t_i + x_i) + r · max_{i≥s} t_i

Two stages that meet over a slow link take turns at it: the first sends a micro-batch
when the one before the last is back. With w − 2 behind them, and m + 1 − w = 2n + r,

    T ≥ Σ_{i<s} (t_i + x_i) + (1 + n) · (t_s + x_s + t_{s+1}) + (w − 2 + r) · t_s

Gradients are summed behind a stage's last backward, and it is updated behind all that
(`stage_passes`; in what is above, too):

    T ≥ Σ_{i<s} (t_i + x_i) + m · t_s + update_s
    T ≥ Σ_{i<s} (f_i + x_i / 2) + m · t_s + late_s + update_s

where x is the way to the next stage and back (in the sum before s, between places
alone), late_0 is in every sum from the first stage on, and stage s holds min(w, m)
micro-batches. (Paths: `costmodel.batched.makespan`.) F(w, k, d), the least Σ (t + x)
over w stages that hold the layers from k on, on the last d devices, grows from the
end; for the sum before them stands the least of any cut of the first k layers on the
other devices, for the slowest of them the least that one can be.

What no layout goes below, known before anything is priced: the matrix products.

A product of so many FLOPs takes no less than they take at the sustained rate
(`costmodel.machine.kernels`: tiles are whole, traffic and launches come on top),
however it is cut. Spread over all devices as is best,

    T ≥ Σ over products of  min over devices of  w · FLOPs / rate

for any weights w of the devices that sum to 1: each as fast as it is.

What no pipeline of unlike stages goes below: whole layers, whole meshes, the fill,
and what a stage holds at the least.

Stage s runs m micro-batches forward and backward; before its first, a micro-batch goes
forward through the stages before it, and after its last, one backward:

    T ≥ Σ_{i<s} t_i + m · t_s + update_s           for every stage s
    T ≥ Σ_{i<s} f_i + m · t_s + late_s + update_s  (late_0 in every Σ t_i too)

with what `stage_passes` says of a gradient reduction that is late, and of updates.

Of all cuts of the layers into stages on the meshes of a menu, the least that this can
be: G(k, d), the least Σ t (and the least Σ f) over stages that hold the first k layers
on the first d devices and none of which breaks T, grows from layer to layer, and T is
possible if the last layer is reached on the last device. T is then found by halving. A
stage has two micro-batches in flight, the last one has one: of their memory no more is
asked (`trip_bound` asks for as many as stages follow).

What devices are busy with at the least, whatever the cuts between stages.

What stages of each kind take at the least, by how many micro-batches they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from costmodel.machine import Machine
from costmodel.simulation import operator_flops
from planner.heterogeneous.candidates import (
    Growing,
    Kind,
    Option,
    Sums,
    stages_sums,
    unit_of,
)
from planner.heterogeneous.stage_costs import Passes, Stages, gathered
from planner.problem import Place, Problem, orders
from profiles.arrays import Array
from profiles.hardware import Format, precision
from profiles.models import PRODUCTS
from profiles.samples import number_of


def root_bound_s(problem: Problem) -> float:
    """Seconds that no layout takes less than; next to nothing where samples price
    products, which know no sustained rate."""
    places = next(orders(problem))
    step_s = problem.machine.step_s
    if problem.machine.measured is not None:
        return step_s
    works = [_seconds(problem, place.machine) for place in places]
    rate = sum(
        place.devices / float(work.sum())
        for place, work in zip(places, works, strict=True)
    )
    shares = [work / work.sum() for work in works]
    return float(np.min(shares, axis=0).sum()) / rate + step_s


def _seconds(problem: Problem, on: Machine) -> Array:
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


CLOSE = 2e-3  # of the bound: halving stops there
Late = Callable[[], bool]  # whether time is over
MeshSpan = tuple[int, int, int]  # devices, and between which a stage of so many may lie


def never() -> bool:
    return False


def cut_bound_s(
    options: Sequence[Option],
    passes: Sequence[Passes],
    *,
    devices: int,
    micro_batches: int,
    at_least_s: float = 0.0,
    at_most_s: float,
    late: Late = never,
) -> float:
    """Seconds that no partition takes less than, with the *passes* of each option;
    *at_least_s* is known to be one such bound, and more than *at_most_s* is of no use.
    Once it is *late* a looser one will do.
    """
    unit, kinds = _kinds(options, passes, devices, micro_batches)

    def possible(most_s: float) -> bool:
        return _reaches(kinds, devices // unit, micro_batches, most_s)

    if not kinds:
        return at_most_s
    return halved(possible, at_least_s, at_most_s, late)


def halved(
    possible: Callable[[float], bool], low: float, high: float, late: Late = never
) -> float:
    """The largest number up to *high* known to be impossible, within `CLOSE`: *low* is
    one, and what is more than a possible one is possible. What is known once it is
    *late* has to do."""
    if late():
        return low
    if not possible(high):
        return high
    while high - low > CLOSE * high and not late():
        middle = (low + high) / 2
        if possible(middle):
            high = middle
        else:
            low = middle
    return low


def _kinds(
    options: Sequence[Option],
    passes: Sequence[Passes],
    devices: int,
    micro_batches: int,
) -> tuple[int, dict[MeshSpan, tuple[Stages, ...]]]:
    """The meshes' common divisor, and for each kind, in units of that, what its stages
    take at the least."""
    fitting = [
        (option, each)
        for option, each in zip(options, passes, strict=True)
        if option.devices <= devices
    ]
    unit = unit_of(options, devices)

    if not fitting:
        return unit, {}
    found, ways = zip(*fitting, strict=True)
    fits = np.array(
        [
            least_bytes(option, micro_batches) <= option.capacity_bytes
            for option in found
        ]
    )
    kinds = [_kind(option, devices, unit) for option in found]
    return unit, gathered(kinds, ways, Stages.of(found, ways), fits)


def _kind(option: Option, devices: int, unit: int) -> MeshSpan:
    first, last = option.span or (0, devices)
    return option.devices // unit, first // unit, last // unit


def least_bytes(option: Option, micro_batches: int) -> Array:
    """[first, last] → bytes of a stage wherever it is in a pipeline."""
    found = option.stages_bytes(min(2, micro_batches))
    found[:, -1] = option.stages_bytes(1)[:, -1]
    return found


def _reaches(
    kinds: Mapping[MeshSpan, Sequence[Stages]],
    devices: int,
    micro_batches: int,
    most_s: float,
) -> bool:
    """Whether some partition takes no more than *most_s* at any of its stages."""
    several = [one for ways in kinds.values() for one in ways]
    layers = len(several[0].both_s)
    late = any(one.is_late for one in several)
    least = np.full((layers + 1, devices + 1), inf)
    least[0, 0] = 0.0
    forward = least.copy()
    for first in range(layers):
        for (size, start, end), ways in kinds.items():
            if end - start < size:
                continue
            before, after = slice(start, end - size + 1), slice(start + size, end + 1)
            prefix_s = least[first][None, before]
            early_s = forward[first][None, before]
            for one in ways:
                stage_s = one.both_s[first, first:, None]
                late_s = one.late_s[first, first:, None]
                left_s = most_s - one.update_s[first, first:, None]
                left_s = left_s - micro_batches * stage_s
                fits = prefix_s <= left_s
                if late:
                    fits &= early_s + late_s <= left_s
                    onward_s = early_s + one.forward_s[first, first:, None]
                    _lower(forward[first + 1 :, after], fits, onward_s)
                counted_s = stage_s + late_s if first == 0 else stage_s
                _lower(least[first + 1 :, after], fits, prefix_s + counted_s)
    return bool(np.isfinite(least[layers, devices]))


def _lower(known: Array, fits: Array, found: Array) -> None:
    """Put what is *found* into what is *known*, where it is less and *fits*."""
    np.minimum(known, np.where(fits, found, inf), out=known)


def through_s(passes: Sequence[Passes]) -> float:
    """Seconds of a micro-batch through all layers and back, each on the fastest."""
    return float(np.min([one.both_s for one in passes], axis=0).sum())


def busy_s(
    options: Sequence[Option], passes: Sequence[Passes], places: Sequence[Place]
) -> float:
    """Seconds in which all devices together do a micro-batch, spread as is best.

    The mean over devices of the least device-seconds, those of each place weighed by
    how fast it is: any weights bound, by duality.
    """
    works = {
        place: _work(options, passes, [one is place for one in places])
        for place in dict.fromkeys(places)
    }
    rate = sum(place.devices / float(work.sum()) for place, work in works.items())
    shares = [work / work.sum() for work in works.values()]
    return float(np.min(shares, axis=0).sum()) / rate


def _work(
    options: Sequence[Option], passes: Sequence[Passes], here: Sequence[bool]
) -> Array:
    """Device-seconds of each layer by the option *here* that needs least."""
    every = [
        each.both_s * option.devices
        for each, option, inside in zip(passes, options, here, strict=True)
        if inside
    ]
    return np.asarray(np.min(every, axis=0))


EXACT = 1e-12  # sums in another order
ENDLESS = 1e300  # bytes: more than any stage needs
Held = Mapping[Kind, Sequence[Stages]]


class StagesHeld:
    """[stages to the end − 1] → what stages take that fit with as many micro-batches
    in flight, or with all; made when it is asked for. Devices in units of the meshes'
    common divisor; *tied_s* as `Stages.of` has it."""

    def __init__(
        self,
        options: Sequence[Option],
        passes: Sequence[Passes],
        *,
        devices: int,
        micro_batches: int,
        tied_s: float = 0.0,
    ) -> None:
        pairs = zip(options, passes, strict=True)
        self._fitting = [pair for pair in pairs if pair[0].devices <= devices]
        self.unit = unit_of(options, devices)
        self.units, self.layers = devices // self.unit, len(passes[0].forward_s)
        self.micro_batches, self.tied_s = micro_batches, tied_s
        self._known: dict[int, Held] = {}
        self._alike: dict[bytes, Held] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no mesh is small enough."""
        return not self._fitting

    def __getitem__(self, behind: int) -> Held:
        in_flight = min(behind + 1, self.layers, self.units, self.micro_batches)
        if in_flight not in self._known:
            self._known[in_flight] = self._made(in_flight)
        return self._known[in_flight]

    @cached_property
    def _kinds(self) -> list[Kind]:
        devices = self.units * self.unit
        return [option.kind(devices, self.unit) for option, _ in self._fitting]

    @cached_property
    def _stages(self) -> Stages:
        options, passes = zip(*self._fitting, strict=True)
        return Stages.of(options, passes, self.tied_s)

    @cached_property
    def _most(self) -> Array:
        """Micro-batches that each option's stages may have in flight, of so many as
        matter; −1 where they do not fit without any."""
        options = [option for option, _ in self._fitting]
        most = min(self.layers, self.units, self.micro_batches)
        left = np.array(
            [
                min(option.capacity_bytes, ENDLESS) - option.stages_bytes(0)
                for option in options
            ]
        )
        saved = stages_sums(np.array([option.saved_bytes for option in options]))
        found = np.full(left.shape, most)
        limited = (saved > 0) & np.isfinite(saved)
        some = left[limited] * (1 + EXACT) / saved[limited]
        found[limited] = np.minimum(some, most).astype(int)
        return np.where(left >= 0, found, -1).astype(np.int16)

    def _made(self, in_flight: int) -> Held:
        fits = self._most >= in_flight
        key = np.packbits(fits).tobytes()
        if key not in self._alike:
            passes = [each for _, each in self._fitting]
            self._alike[key] = gathered(self._kinds, passes, self._stages, fits)
        return self._alike[key]


def trip_bound_s(
    stages: StagesHeld,
    *,
    at_least_s: float = 0.0,
    at_most_s: float,
    late: Late = never,
) -> float:
    """Seconds that no partition into *stages* takes less than; the others as
    `cut_bound_s` has them. Options of one size and span cross in the same time."""
    if stages.is_empty:
        return at_most_s
    return halved(_Trips(stages=stages).possible, at_least_s, at_most_s, late)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trips:
    """What *stages* that fit take at the least, and [layers, devices] → the least sums
    before them."""

    stages: StagesHeld

    @property
    def layers(self) -> int:
        return self.stages.layers

    @property
    def units(self) -> int:
        return self.stages.units

    @property
    def micro_batches(self) -> int:
        return self.stages.micro_batches

    @cached_property
    def before(self) -> tuple[Array, Array]:
        """The least sum there and back, and the least there."""
        return _before(self.stages[0], self.layers, self.units)

    @cached_property
    def shortest(self) -> Array:
        """The least that each layer takes alone."""
        ways = [one for several in self.stages[0].values() for one in several]
        return np.asarray(np.min([np.diagonal(one.both_s) for one in ways], axis=0))

    @cached_property
    def slowest(self) -> Array:
        """[first layer, devices to the end] → the least that the slowest stage is."""
        found = np.full((self.layers + 1, self.units + 1), inf)
        found[self.layers, 0] = 0.0
        for first in reversed(range(self.layers)):
            for kind, ways in self.stages[0].items():
                if not kind.possible:
                    continue
                behind = slice(kind.fewest - kind.size, kind.most - kind.size + 1)
                for one in ways:
                    taken_s = one.both_s[first, first:, None]
                    slowest_s = np.maximum(taken_s, found[first + 1 :, behind])
                    there = found[first, kind.left]
                    np.minimum(there, slowest_s.min(axis=0), out=there)
        return found

    @cached_property
    def late(self) -> bool:
        """Whether any stage's reduction may be."""
        return any(one.is_late for ways in self.stages[0].values() for one in ways)

    def possible(self, most_s: float) -> bool:
        """Whether some partition breaks no bound with *most_s*."""
        behind = Sums.of_none(self.layers, self.units)
        for stages in range(1, min(self.layers, self.units) + 1):
            behind = self._one_more(behind, stages, most_s)
            if np.isfinite(behind.least[0, self.units]):
                return True
            if not np.isfinite(behind.least).any():
                return False
        return False

    def _one_more(self, behind: Sums, stages: int, most_s: float) -> Sums:
        """The least sums over so many stages, of those over one less."""
        before, there = (sums[:, ::-1] for sums in self.before)
        growing, m = Growing(behind), self.micro_batches
        more, passed = divmod(m - 1, stages)
        trips, passed = 1 + more, passed if more else 0
        for kind, ways in self.stages[stages - 1].items():
            if not kind.possible:
                continue
            rest = behind.behind(kind)
            reached = np.flatnonzero(np.isfinite(rest).any(axis=1))
            for one in ways if len(reached) else ():
                each = one.both_s[:, reached, None]
                early_s = before[:-1, None, kind.left]
                left_s = most_s - one.update_s[:, reached, None]
                fits = early_s + m * each <= left_s
                sums = each + rest[None, reached]
                waited_s = trips * sums + _times(passed, each)
                fits &= early_s + waited_s <= left_s
                if stages > 1 and kind.ways.crossed_s:
                    turns_s = self._turns_s(kind, each[:, :, 0], reached, stages)
                    fits[:, :, 0] &= early_s[:, :, 0] + turns_s <= left_s[:, :, 0]
                if self.late:
                    late_s = one.late_s[:, reached, None]
                    sent_s = there[:-1, None, kind.left]
                    fits &= sent_s + m * each + late_s <= left_s
                    fits[0] &= waited_s[0] + late_s[0] <= left_s[0]
                growing.add(kind, np.where(fits, sums, inf).min(axis=1))
        left_s = most_s - before - _times(passed, self.slowest)
        return growing.within(left_s / trips)

    def _turns_s(self, kind: Kind, each: Array, last: Array, stages: int) -> Array:
        """Of stages of *kind* that take *each* and are the *last* of their island, what
        they and the next stage take, which has a layer or more."""
        behind = min(stages - 2, self.micro_batches - 1)
        more, passed = divmod(self.micro_batches - 1 - behind, 2)
        once_s = each + kind.ways.crossed_s + np.append(self.shortest, inf)[last + 1]
        behind += passed if more else 0
        return np.asarray((1 + more) * once_s + _times(behind, each))


def _times(count: int, seconds: Array) -> Array:
    """So many times *seconds*, which may be infinite: never nan."""
    return count * seconds if count else np.zeros(())


def _before(
    kinds: Mapping[Kind, Sequence[Stages]], layers: int, units: int
) -> tuple[Array, Array]:
    """[layers, devices] → the least sums over stages that hold the first layers on the
    first devices, and are not the last: there and back, and there."""
    both = np.full((layers + 1, units + 1), inf)
    both[0, 0] = 0.0
    forward = both.copy()
    for first in range(layers):
        for kind, ways in kinds.items():
            if not kind.possible:
                continue
            start, end = units - kind.most, units - kind.fewest + kind.size
            before = slice(start, end - kind.size + 1)
            after = slice(start + kind.size, end + 1)
            for one in ways:
                late_s = one.late_s[first, first:, None] * (first == 0)
                crossed_s = kind.ways.crossed_s
                for known, taken_s, way_s in (
                    (both, one.both_s[first, first:, None] + late_s, crossed_s),
                    (forward, one.forward_s[first, first:, None], crossed_s / 2),
                ):
                    sums = known[first, before][None] + taken_s
                    sums[:-1, -1] += way_s
                    there = known[first + 1 :, after]
                    np.minimum(there, sums, out=there)
    return both, forward
