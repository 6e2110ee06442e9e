"""`Solution`: the answer of a search, and everything needed to argue with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from planner.problem.problem import Candidate

EXACT = 1e-9  # bounds and simulation add the same numbers in another order
WORTHWHILE = 0.98  # a layout that does not fit is worth naming if it is 2 % faster
WORTH_A_TRY = (
    0.97  # of the best step: what may not fit is tried first if it is 3 % faster
)


class Status(StrEnum):
    """What is known of the best layout that was found."""

    OPTIMAL = "optimal"  # no candidate has a smaller value
    FEASIBLE = "feasible"  # one may, by at most the gap
    INFEASIBLE = "infeasible"  # there is no candidate, or none fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Where the candidates went: each was simulated or ruled out by a bound.

    `by_memory` are those that cannot fit, `by_value` those that cannot be better.
    """

    considered: int
    simulated: int
    by_memory: int = 0
    by_value: int = 0

    @property
    def pruned(self) -> int:
        return self.by_memory + self.by_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What was looked at beside the search's space: retention chosen stage by stage.

    `considered` candidates might be better so, `simulated` of them were tried. `lower`
    is a value that neither they nor the search's candidates go below; `uniform_value`
    and `uniform_lower` are what the search found and proved.
    """

    considered: int
    simulated: int
    lower: float
    uniform_value: float
    uniform_lower: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """What is known of stages of unequal layers: of each candidate that runs 1F1B on
    several stages all cuts are one of those `considered`. No cut goes below `lower`,
    and none whose retention is chosen by stage below `fitted_lower`; `even_value` is
    the best of stages that are as equal as can be, infinite where none fits, None where
    the layers are pinned."""

    considered: int
    simulated: int  # cuts
    by_memory: int
    lower: float
    even_value: float | None
    fitted: int  # cuts whose retention was chosen by stage
    fitted_lower: float  # that none of these goes below


@dataclass(frozen=True, slots=True, kw_only=True)
class Wider:
    """What was looked at beside layouts of alike stages: partitions of the model over
    unlike meshes, and the value that none of them goes below."""

    partitions: int
    simulated: int
    lower: float
    alike: Solution  # of alike stages, before


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Of one block on *tp* ranks, *sequences* at a time: seconds of a micro-batch by
    the layout's preset, by the best sharding found, and what none goes below."""

    block: str
    tp: int
    sequences: int
    status: str  # optimal, feasible (within the gap), failed
    own_s: float
    best_s: float
    lower_s: float

    @property
    def gap(self) -> float:
        """1 − lower / best: 0 is proven."""
        return max(0.0, 1 - self.lower_s / self.best_s) if self.best_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """How the operators of the best candidate's blocks are best split. Where that made
    it faster, the value and the lower bound of presets alone."""

    proofs: tuple[Proof, ...]
    preset_value: float | None = None
    preset_lower: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best candidate with its certificate.

    `lower` is a value that no candidate of the space goes below (0: nothing is known),
    `lower_step_time_s` the same for the step time, whatever the objective. `complete`
    says that all of the space was looked at. `runners_up` differ in more than details,
    the best first. `too_big` would be faster by 2 % or more, but does not fit; of those
    it needs the least memory. `added` says what else was tried; where that is better,
    `best` is of it, and `lower` still bounds the search's space. `instead_of` is faster
    by its estimate, within the gap, but worse in its bad case (`robust`). `operators`
    says what is known of shardings other than presets. `by_estimate` is the fastest
    that fits by its estimate alone, where it is faster by 2 % or more.
    """

    search: str
    status: Status
    best: Candidate | None
    value: float
    lower: float
    lower_step_time_s: float
    complete: bool
    counters: Counters
    seconds: float
    runners_up: tuple[Candidate, ...] = ()
    too_big: Candidate | None = None
    added: Added | None = None
    cuts: Cuts | None = None
    wider: Wider | None = None
    instead_of: Candidate | None = None
    operators: Operators | None = None
    by_estimate: Candidate | None = None
    only_unlike: bool = False  # stages of any mesh, each inside one island, alone

    @property
    def space(self) -> str:
        """What `lower` speaks of."""
        any_stage = self.wider is not None or self.only_unlike
        return "any-stage" if any_stage else "uniform"

    @property
    def try_first(self) -> Candidate | None:
        """What fits by its estimate alone, if it is so much faster that it is worth a
        try before the best."""
        other = self.by_estimate
        if other is None or self.best is None:
            return None
        ratio = other.estimate.step_time_s / self.best.estimate.step_time_s
        return other if ratio < WORTH_A_TRY else None

    @property
    def preset_value(self) -> float:
        """The value before operators had shardings of their own."""
        before = self.operators.preset_value if self.operators else None
        return self.value if before is None else before

    @property
    def even_value(self) -> float:
        """The same before layers were cut unevenly."""
        before = self.cuts.even_value if self.cuts else None
        known = before is not None and before < inf
        return before if before is not None and known else self.preset_value

    @property
    def cut_gain(self) -> float | None:
        """How much better unequal layers are than equal ones: 0 too where the best was
        taken for its bad case and equal ones are faster by estimate; None where there
        are none to compare with."""
        even = self.cuts.even_value if self.cuts else None
        if even is None or even == inf:
            return None
        return max(0.0, 1 - self.preset_value / even)

    @property
    def gap(self) -> float:
        """1 − lower / value: 0 is proven best, 1 is nothing known."""
        if self.value == inf:
            return 1.0
        return max(0.0, 1 - self.lower / self.value)


def hopeless_by_states(
    search: str, seconds: float, *, considered: int = 0, only_unlike: bool = False
) -> Solution:
    """The answer where nothing has to be priced to know that nothing fits."""
    return Solution(
        search=search,
        status=Status.INFEASIBLE,
        best=None,
        value=inf,
        lower=inf,
        lower_step_time_s=0.0,
        complete=True,
        counters=Counters(considered=considered, simulated=0, by_memory=considered),
        seconds=seconds,
        only_unlike=only_unlike,
    )
