"""What no pipeline's compute can beat: longest paths through its dependencies.

A lower bound of the seconds from a step's first forward to its last backward, before
gradients and the optimizer. It broadcasts over arrays of candidates [..., stages] that
share schedule, pp and virtual_stages. Each term is a path that the schedule has, so
the bound holds to rounding whatever the costs; where transfers do not queue it is
exact for gpipe, and for 1f1b and interleaved within 1 % on nine cases of ten
(`benchmarks/timeline.py`).

A path goes *down* (forwards to the next stage), *up* (backwards), or along one rank's
stream. Stage e of 1f1b turns: after p − 1 − e forwards to fill it, each forward is
followed by a backward. From there a path goes

    along    up to a stage s <= e, whose m micro-batches it passes one by one
    windows  up to s, where the next forward waits for that backward, and down to e
             again: e − s + 1 micro-batches each time, in Σ (f + b) + Σ transfers.
             (This is where transfers that nothing hides show up.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.makespan_interleaved import interleaved_bound_s
from costmodel.schedule import require_schedule
from costmodel.stage_line import Array, Line
from profiles.errors import InvalidSpec


def makespan_bound_s(
    schedule: str,
    stages: Line,
    *,
    pp: int,
    virtual_stages: int,
    micro_batches: int,
) -> Array:
    """Seconds that the compute of a step takes at least, shaped like the candidates.

    Raises as `schedule.require_schedule`, and InvalidSpec for another number of stages.
    """
    require_schedule(schedule, pp, virtual_stages, micro_batches)
    if stages.forward_s.shape[-1] != pp * virtual_stages:
        raise InvalidSpec(
            f"times of {stages.forward_s.shape[-1]} stages for pp={pp} and "
            f"virtual_stages={virtual_stages}; give {pp * virtual_stages}"
        )
    if schedule == "interleaved":
        return interleaved_bound_s(stages, virtual_stages, micro_batches)
    if schedule == "gpipe" and pp > 1:
        return _two_phases(stages, micro_batches)
    return _one_f_one_b(stages, micro_batches)


def _two_phases(stages: Line, micro_batches: int) -> Array:
    """All forwards, then all backwards: each phase waits for its slowest part."""
    once = (
        stages.before_s[..., -1]
        + stages.forward_s[..., -1]
        + stages.backward_s[..., -1]
        + stages.after_s[..., -1]
    )
    slowest_down = np.maximum(stages.forward_s, stages.down_s).max(axis=-1)
    slowest_up = np.maximum(stages.backward_s, stages.up_s).max(axis=-1)
    return np.asarray(once + (micro_batches - 1) * (slowest_down + slowest_up))


def _one_f_one_b(stages: Line, micro_batches: int) -> Array:
    """The longest path over all pairs of stages s <= e."""
    both = stages.forward_s + stages.backward_s
    count = both.shape[-1]
    s, e = np.arange(count)[:, None], np.arange(count)[None, :]
    paths = _Paths(
        s=s,
        e=e,
        micro_batches=micro_batches,
        inside=e >= s,
        both=both,
        there_and_back=stages.before_s + both + stages.after_s,
        slowest_f=np.maximum.accumulate(stages.forward_s, axis=-1),
        slowest_b=np.maximum.accumulate(stages.backward_s, axis=-1),
    )
    longest = np.maximum(paths.along(), paths.windows())
    return np.asarray(np.where(paths.inside, longest, 0.0).max(axis=(-2, -1)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Paths:
    """Paths that turn at stage e, [..., s, e].

    `slowest_f` and `slowest_b` are over a stage and those above it.
    """

    s: Array
    e: Array
    inside: Array
    micro_batches: int
    both: Array
    there_and_back: Array
    slowest_f: Array
    slowest_b: Array

    @property
    def fill(self) -> Array:
        """Micro-batches that stage e takes in before its first backward."""
        behind = self.both.shape[-1] - 1 - self.e
        return np.asarray(np.minimum(behind, self.micro_batches - 1))

    def along(self) -> Array:
        """Down, back up to stage s, and along its stream; or the mirror image.

        The micro-batches that s has no pair of passes for pass the slowest stage above
        it once; those that fill stage e pass the slowest stage above that.
        """
        behind = self.both.shape[-1] - 1 - self.s
        pairs = np.maximum(self.micro_batches - 1 - behind, 0)
        single = self.micro_batches - 1 - pairs
        down_e, up_e = self.slowest_f[..., None, :], self.slowest_b[..., None, :]
        down_s, up_s = self.slowest_f[..., :, None], self.slowest_b[..., :, None]
        once = np.maximum(
            self.fill * down_e + single * up_s, self.fill * up_e + single * down_s
        )
        trip = self.there_and_back[..., None, :]
        return np.asarray(trip + pairs * self.both[..., :, None] + once)

    def windows(self) -> Array:
        """Down, and then through the window s … e as often as it goes, or once.

        What is left over passes the slowest stage of the window, or a smaller one.
        """
        n = np.maximum(self.e - self.s + 1, 1)
        rest = self.micro_batches - 1 - self.fill
        times, left = np.divmod(rest, n)
        trip = self.there_and_back[..., None, :]
        window = trip - (self.there_and_back - self.both)[..., :, None]
        within = np.where(self.inside, self.both[..., None, :], 0.0)
        slowest = np.maximum.accumulate(within, axis=-1)
        smaller = window[..., np.clip(self.e - left + 1, 0, self.e), self.e]
        over = np.maximum(
            left * np.where(times > 0, slowest, within),
            np.where(left > 0, smaller, 0.0),
        )
        often = times * window + over
        once = np.where(times > 0, window + (rest - n) * slowest, 0.0)
        turns = self.fill * (self.slowest_f + self.slowest_b)[..., None, :]
        return np.asarray(trip + turns + np.maximum(often, once))
