"""Goodput: the share of a run's time that becomes progress, where machines fail.

A run saves after every w seconds of training, which takes δ. Failures come at random,
one in M seconds; after each, training starts again after R, and the step that was under
way (of s seconds) and a share ρ of the work since the last checkpoint are done again:
all of it from a checkpoint (ρ = 1), nothing where live replicas have the state (ρ = 0),
the pipeline's part of one group of machines where what goes to it was logged (Zhong et
al., "Swift", PPoPP 2023). A failure while one recovers begins the recovery anew. Of
that, exactly,

    goodput = w / E(w)
    E(w) = M e^(R/M) [κ (e^(ρw/M) − 1)/ρ + (e^(δ/M) − 1) e^(ρw/M)]
    κ = φ(s/M) / φ(ρs/M),   φ(x) = (e^x − 1)/x

With ρ = 1 this is Daly's M e^(R/M) (e^((w+δ)/M) − 1); to first order it is Swift's
1 − (δ/τ + (R + replay)/M), with τ from one checkpoint to the next. It is best where

    e^y (1 − y) = κ / (κ + ρa),   y = ρw/M,   a = e^(δ/M) − 1

which is √(2δM) to first order (Young, CACM 17(9), 1974), and of higher order Daly's,
Future Generation Computer Systems 22(3), 2006, equation 37.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, expm1, inf, sqrt
from typing import Final

from profiles.errors import InvalidSpec

HOPELESS: Final = 500.0  # times the MTBF without a failure: e^500 tries
SMALL: Final = 1e-4  # below, e^y (1 − y) is 1 − y²/2
BISECTIONS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureModel:
    """How often a job fails, and what that and its checkpoints cost, in seconds.

    `replay` is ρ, the share of the work since the last checkpoint that is done again.
    """

    mtbf_s: float
    checkpoint_s: float  # that training waits for one
    restart_s: float  # from a failure to the first step after it
    replay: float = 1.0
    step_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0 or not 0 <= self.checkpoint_s < inf:
            raise InvalidSpec(
                f"a mean time between failures is above 0, got {self.mtbf_s:g} s; a "
                f"checkpoint takes 0 or more seconds, got {self.checkpoint_s:g}"
            )
        if not 0 <= self.restart_s < inf or not 0 <= self.replay <= 1:
            raise InvalidSpec(
                f"a restart takes 0 or more seconds, got {self.restart_s:g}; the share "
                f"of the work that is done again is 0 to 1, got {self.replay:g}"
            )

    def goodput(self, interval_s: float) -> float:
        """With a checkpoint every *interval_s*, its own time included; 0 where failures
        leave no time.

        >>> one = FailureModel(mtbf_s=10_000, checkpoint_s=2, restart_s=40)
        >>> round(one.goodput(100), 4)
        0.9712
        """
        work_s = interval_s - self.checkpoint_s
        if work_s <= 0 or interval_s + self.restart_s > HOPELESS * self.mtbf_s:
            return 0.0
        return work_s / self.cycle_s(work_s)

    def first_order(self, interval_s: float) -> float:
        """The same where no failure falls into another's recovery, as failures that
        were counted in a run, and their restarts, are.

        >>> FailureModel(mtbf_s=1000, checkpoint_s=2, restart_s=40).first_order(100)
        0.89
        """
        replay_s = (self.replay * interval_s + (1 - self.replay) * self.step_s) / 2
        lost = self.checkpoint_s / interval_s
        return max(0.0, 1 - lost - (self.restart_s + replay_s) / self.mtbf_s)

    def cycle_s(self, work_s: float) -> float:
        """E(w): the expected seconds of *work_s* of training and the checkpoint."""
        if self.mtbf_s == inf:
            return work_s + self.checkpoint_s
        again = self.replay * work_s / self.mtbf_s
        trained_s = self._kappa * work_s * _phi(again)
        saved_s = self.mtbf_s * expm1(self.checkpoint_s / self.mtbf_s) * exp(again)
        return exp(self.restart_s / self.mtbf_s) * (trained_s + saved_s)

    @property
    def _kappa(self) -> float:
        share = self.step_s / self.mtbf_s
        return _phi(share) / _phi(self.replay * share)

    @property
    def best_interval_s(self) -> float:
        """Where `goodput` is largest; no end where nothing is done again, or nothing
        fails."""
        if self.replay == 0 or self.mtbf_s == inf:
            return inf
        kappa = self._kappa
        a = self.replay * expm1(min(self.checkpoint_s / self.mtbf_s, HOPELESS))
        y = _inverse(a / (kappa + a))
        return y * self.mtbf_s / self.replay + self.checkpoint_s

    @property
    def young_interval_s(self) -> float:
        """√(2 · T_ckpt · MTBF): the best to first order where all is done again."""
        return sqrt(2 * self.checkpoint_s * self.mtbf_s)

    @property
    def daly_interval_s(self) -> float:
        """The same where checkpoints are not short beside the MTBF: training between
        two, with the checkpoint."""
        if self.mtbf_s == inf:
            return inf
        share = self.checkpoint_s / (2 * self.mtbf_s)
        if share >= 1:
            return self.mtbf_s + self.checkpoint_s
        return self.young_interval_s * (1 + sqrt(share) / 3 + share / 9)

    def failing(self, mtbf_s: float) -> FailureModel:
        """The same job, failing once in *mtbf_s*."""
        return replace(self, mtbf_s=mtbf_s)


def _phi(x: float) -> float:
    return expm1(x) / x if x else 1.0


def _inverse(c: float) -> float:
    """The y from 0 to 1 with 1 − e^y (1 − y) = c."""
    low, high = 0.0, 1.0
    if sqrt(2 * c) < SMALL:
        return sqrt(2 * c)
    for _ in range(BISECTIONS):
        y = (low + high) / 2
        if y * exp(y) - expm1(y) < c:
            low = y
        else:
            high = y
    return (low + high) / 2
