"""Runs that are drawn: failures, recoveries and repairs one by one.

What `goodput` and `spares` say by formulas, simulated: the next event of each run is a
failure or a repair, whichever comes first; between two, the run recovers and then
trains and saves in turn. All runs go on together as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.training_run.goodput import FailureModel
from costmodel.training_run.spares import Pool
from profiles.errors import InvalidSpec

SEED: Final = 1234  # Megatron-LM's
NORMAL: Final = 1.959964  # of a 95 % interval
MOST_EVENTS: Final = 50_000  # of one run
MOST_DRAWN: Final = 1e8  # of all runs
ROUNDING: Final = 1e-9
SOON_S: Final = 1e-9  # a spare that is always there
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Seconds and failures of each of the runs that did *work_s* of training."""

    work_s: float
    wall_s: Floats
    failures: NDArray[np.int64]

    @property
    def goodput(self) -> float:
        return self.work_s / float(self.wall_s.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """In which the goodput lies with 95 % confidence."""
        mean = float(self.wall_s.mean())
        off = NORMAL * float(self.wall_s.std(ddof=1)) / sqrt(len(self.wall_s))
        return self.work_s / (mean + off), self.work_s / max(mean - off, self.work_s)

    def days_of(self, seconds: float) -> dict[str, float]:
        """p10, p50 and p90 of the days that a run of so many seconds takes."""
        scale = seconds / self.work_s / 86400
        low, middle, high = np.quantile(self.wall_s, (0.1, 0.5, 0.9)) * scale
        return {"p10": float(low), "p50": float(middle), "p90": float(high)}


def drawn(
    job: FailureModel, pool: Pool, interval_s: float, work_s: float, runs: int
) -> Drawn:
    """So many *runs* of *work_s* of training, up to a whole number of checkpoints.

    Raises InvalidSpec where failures leave hardly any time, or are too many to draw.
    """
    every_s = interval_s - job.checkpoint_s
    cycles = max(1, round(work_s / every_s))
    _require_few(pool, cycles * every_s, pool.goodput(job, interval_s), runs)
    draw = _Draw(job, pool, every_s, cycles, runs)
    while draw.active.size:
        draw.advance()
    return Drawn(work_s=cycles * every_s, wall_s=draw.wall, failures=draw.failures)


def _require_few(pool: Pool, work_s: float, goodput: float, runs: int) -> None:
    """Raise InvalidSpec where it would take minutes to draw them."""
    events = 2 * work_s / goodput * pool.nodes / pool.mtbf_s if goodput else inf
    if events > MOST_EVENTS:
        raise InvalidSpec(
            f"--monte-carlo: a run has more than {MOST_EVENTS:,} failures and repairs; "
            "give a longer --mtbf, or fewer --tokens"
        )
    if events * runs > MOST_DRAWN:
        raise InvalidSpec(
            f"--monte-carlo: {runs:,} runs have {events * runs:,.0f} failures and "
            f"repairs; choose {max(2, int(MOST_DRAWN / events)):,} runs at most"
        )


class _Draw:
    """The runs: where each is in its cycle, and what it waits for."""

    def __init__(
        self, job: FailureModel, pool: Pool, every_s: float, cycles: int, runs: int
    ) -> None:
        self.job, self.pool, self.every_s = job, pool, every_s
        self.random = np.random.default_rng(SEED)
        self.wall, self.failures = np.zeros(runs), np.zeros(runs, np.int64)
        self.active = np.arange(runs)
        self.left = np.full(runs, cycles * every_s)  # of training
        self.place = np.zeros(runs)  # in the cycle: training, then its checkpoint
        self.recovery = np.zeros(runs)  # that is still to wait for
        shares = np.array(pool.shares)
        self.broken = self.random.choice(len(shares), runs, p=shares)
        states = range(pool.most + 1)
        self._fails = np.array([pool.at_work(k) / pool.mtbf_s for k in states])
        self._speed = np.array([pool.speed(k) for k in states])

    def advance(self) -> None:
        """To the next event of each run that is not over."""
        now, pool = self.active, self.pool
        broken = self.broken[now]
        failing, repairing = self._fails[broken], broken / max(pool.repair_s, SOON_S)
        span = self.random.exponential(size=now.size) / (failing + repairing)
        fails = self.random.random(now.size) * (failing + repairing) < failing
        trains = np.maximum(span - self.recovery[now], 0.0)
        over = self._train(now, trains, self._speed[broken])
        self.wall[now] += np.where(over >= 0, span - trains + np.abs(over), span)
        self.recovery[now] = np.maximum(self.recovery[now] - span, 0.0)
        going = over < 0
        self._fail(now[going & fails])
        self._repair(now[going & ~fails])
        self.active = now[going]

    def _train(self, now: NDArray[np.int64], span: Floats, speed: Floats) -> Floats:
        """Train for *span* each; seconds until the end of the run, −1 where it goes
        on."""
        every, whole = self.every_s, self.every_s + self.job.checkpoint_s
        place, left = self.place[now], self.left[now]
        until = place + span
        cycles = np.floor(until / whole)
        trained = cycles * every + np.minimum(until - cycles * whole, every)
        trained -= np.minimum(place, every)
        needed = left / speed  # seconds of training, with a checkpoint at the end
        ahead = every - np.minimum(place, every)
        more = np.ceil(np.maximum(needed - ahead, 0.0) / every - ROUNDING)
        saving = np.where(place > every, whole - place, whole - every)
        end = needed + more * (whole - every) + saving
        over = np.where(end <= span, end, -1.0)
        self.place[now] = until - cycles * whole
        self.left[now] = np.maximum(left - trained * speed, 0.0)
        return over

    def _fail(self, now: NDArray[np.int64]) -> None:
        """Recover: the step under way and a share of the work since the checkpoint."""
        job, pool = self.job, self.pool
        self.failures[now] += 1
        fresh = np.minimum(self.place[now], self.every_s)
        self.place[now] = fresh
        step = np.mod(fresh, job.step_s) if job.step_s else np.zeros(now.size)
        step = np.where(fresh < self.every_s, step, 0.0)
        again = job.replay * (fresh - step) + step
        self.recovery[now] = job.restart_s + again
        self.broken[now] += 1
        stuck = now[self.broken[now] > pool.most]
        waits = self.random.exponential(size=stuck.size)
        self.wall[stuck] += waits * pool.repair_s / (pool.most + 1)
        self.broken[stuck] -= 1

    def _repair(self, now: NDArray[np.int64]) -> None:
        """One node more; where one was missing, the job starts again with it."""
        missing = now[self.broken[now] > self.pool.spares]
        self.recovery[missing] = np.maximum(self.recovery[missing], self.job.restart_s)
        self.broken[now] -= 1


def monte_carlo_document(found: Drawn, seconds: float) -> dict[str, Any]:
    low, high = found.interval
    return {
        "runs": len(found.wall_s),
        "goodput": found.goodput,
        "goodput_interval": [low, high],
        "failures": float(found.failures.mean()) * seconds / found.work_s,
        "days": found.days_of(seconds),
    }
