"""`plan --maximize`: the largest sequence, batch or number of layers that fits.

More of each takes more memory, so doubling finds a number that does not fit and
bisection the last one that does, in units that every layout can split:

    seq-len       1,024 tokens, or the largest power of two up to half of a shorter one
    global-batch  dp · micro-batch · micro-batches, as far as they are pinned
    layers        whole turns of unlike layers, times what pp and virtual stages pin
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

from planner.heterogeneous import any_fits
from planner.problem import Asked, Objective, Posed, Problem, only_unlike
from planner.search import Clock, Frontier, Limits, everything_away, free
from profiles.errors import Contradiction, InvalidSpec, Unsupported
from profiles.models import DecoderSpec

LARGEST: Final = {"seq_len": 10**9, "global_batch": 10**9, "layers": 100_000}
UNIT_OF_LENGTH: Final = 1024
TRIED: Final = 20  # candidates simulated, least memory first, before it does not fit
FARTHER: Final = 64  # times the batch: where that fits as well, every batch does


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest *value* of a quantity that fits, the problem at it, and the least
    value tried that does not; both None where memory sets no limit. Where it is *late*
    time was over before larger ones were tried."""

    quantity: str
    unit: int
    value: int | None
    too_large: int | None
    posed: Posed
    late: bool = False

    def document(self) -> dict[str, object]:
        return {
            "quantity": self.quantity.replace("_", "-"),
            "value": self.value,
            "unit": self.unit,
            "too_large": self.too_large,
            "complete": not self.late,
        }

    @property
    def words(self) -> str:
        """The answer in one line."""
        name = self.quantity.replace("_", "-")
        if self.value is None:
            return (
                f"no largest {name}: more micro-batches take no more memory; pin "
                "--micro-batches to bound it"
            )
        more = f"; {self.too_large:,} does not" if self.too_large is not None else ""
        if self.late:
            more = "; more may: the time limit was reached before it was tried"
        return f"{name} {self.value:,} fits{more} (in steps of {self.unit:,})"


def maximize(asked: Asked, quantity: str, limits: Limits | None = None) -> Largest:
    """The largest *quantity* (as an option: seq-len …) with which a layout fits, as far
    as time suffices to try.

    Raises what posing the question with the value that was asked raises,
    Contradiction where the model has another shape than a decoder's, and OutOfTime
    where none was found to fit yet.
    """
    clock = Clock(limits=limits or Limits())
    name = quantity.replace("-", "_")
    base = asked.pose()
    unit, start = _unit(asked, base, name), _asked_value(base.problem, name)
    pose = partial(_posed, asked, name)

    def fitting(units: int) -> bool:
        posed = None if clock.over else pose(units * unit)
        return posed is not None and fits_somehow(posed.problem)

    free = name == "global_batch" and asked.pins.micro_batches is None
    first = max(start // unit, 1)
    if free and fitting(first) and fitting(first * FARTHER):
        return Largest(quantity=name, unit=unit, value=None, too_large=None, posed=base)
    most = LARGEST[name] // unit
    found = last_true(fitting, first, most)
    late = clock.over and found < most
    if late and not found:
        raise clock.out_of_time(0)
    posed = pose(found * unit) if found else pose(unit)
    too_large = None if late or found == most else (found + 1) * unit
    return Largest(
        quantity=name,
        unit=unit,
        value=found * unit,
        too_large=too_large,
        posed=posed or base,
        late=late,
    )


def last_true(holds: Callable[[int], bool], start: int, most: int) -> int:
    """The largest number up to *most* that a monotone predicate *holds* for; 0: none.

    >>> last_true(lambda number: number <= 37, 5, 1000), last_true(bool, 5, 40)
    (37, 40)
    """
    low, high = 0, most + 1
    step = min(start, most)
    while low < step < high:
        if holds(step):
            low, step = step, min(2 * step, most)
        else:
            high, step = step, step // 2 if low == 0 else step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def fits_somehow(problem: Problem) -> bool:
    """Whether any layout fits: simulated, those of the least memory first; by presets,
    and then with what is made again chosen stage by stage."""
    if only_unlike(problem):
        return any_fits(problem) is not None
    problem = everything_away(problem)
    if _fits(problem):
        return True
    return free(problem) and _fits(problem.by_stage())


def _fits(problem: Problem) -> bool:
    pins = problem.pins
    if pins.micro_batch is None and pins.micro_batches is None:
        pins = replace(pins, micro_batch=1)  # holds the least
    frontier = Frontier(replace(problem, objective=Objective.MEMORY, pins=pins))
    if frontier.least == inf:
        return False
    for _ in range(TRIED):
        choice = frontier.take()
        if choice is None:
            return False
        if problem.fits(problem.simulate(choice)):
            return True
    return False


def _posed(asked: Asked, name: str, value: int) -> Posed | None:
    """The problem with another value; None if no layout is legal with it."""
    try:
        return asked.pose(**{name: value})
    except (Contradiction, InvalidSpec):
        return None


def _asked_value(problem: Problem, name: str) -> int:
    job = problem.job
    return {
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "layers": job.graph.body,
    }[name]


def _unit(asked: Asked, base: Posed, name: str) -> int:
    pins, job = asked.pins, base.problem.job
    if name == "seq_len":
        half = max(job.seq_len // 2, 1)
        return min(UNIT_OF_LENGTH, 1 << (half.bit_length() - 1))
    if name == "global_batch":
        inner = (pins.tp or 1) * (pins.pp or 1) * (pins.cp or 1)
        dp = pins.dp or max(base.problem.gpus // inner, 1)
        return dp * (pins.micro_batch or 1) * (pins.micro_batches or 1)
    if not isinstance(job.spec, DecoderSpec):
        raise Unsupported(f"{job.model} is no decoder; layers are added to decoders")
    return max(job.graph.turn, 1) * (pins.pp or 1) * (pins.virtual_stages or 1)
