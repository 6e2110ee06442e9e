"""Goodput: the share of a run's time that becomes progress, where machines fail.

    goodput = 1 − (T_ckpt / τ + (T_detect + T_restore + T_replay) / MTBF)

τ is the time from one checkpoint to the next, MTBF the mean time between failures of
the whole job. A failure comes anywhere between two checkpoints, so half of τ is done
again on average; nothing is where a live replica has the state (Zhong et al., "Swift",
PPoPP 2023).

The best τ: Young, CACM 17(9), 1974, and of higher order Daly, Future Generation
Computer Systems 22(3), 2006, equation 37.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Final

from profiles.errors import InvalidSpec

RECOVERIES: Final = ("checkpoint", "replica")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureModel:
    """How often a job fails, and what that and its checkpoints cost, in seconds."""

    mtbf_s: float
    checkpoint_s: float  # that training waits for one
    restart_s: float  # from a failure to the first step after it
    recovery: str = "checkpoint"

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0 or not 0 <= self.checkpoint_s < inf:
            raise InvalidSpec(
                f"a mean time between failures is above 0, got {self.mtbf_s:g} s; a "
                f"checkpoint takes 0 or more seconds, got {self.checkpoint_s:g}"
            )
        if not 0 <= self.restart_s < inf or self.recovery not in RECOVERIES:
            raise InvalidSpec(
                f"a restart takes 0 or more seconds, got {self.restart_s:g}; recovery "
                f"is one of {', '.join(RECOVERIES)}, got {self.recovery!r}"
            )

    def goodput(self, interval_s: float) -> float:
        """With a checkpoint every *interval_s*, its own time included; 0 where failures
        leave no time.

        >>> FailureModel(mtbf_s=1000, checkpoint_s=2, restart_s=40).goodput(100)
        0.89
        """
        replay_s = interval_s / 2 if self.recovery == "checkpoint" else 0.0
        lost = self.checkpoint_s / interval_s
        lost += (self.restart_s + replay_s) / self.mtbf_s
        return max(0.0, 1 - lost)

    @property
    def young_interval_s(self) -> float:
        """Where `goodput` is largest: √(2 · T_ckpt · MTBF), no end without replay."""
        if self.recovery != "checkpoint":
            return inf
        return sqrt(2 * self.checkpoint_s * self.mtbf_s)

    @property
    def daly_interval_s(self) -> float:
        """The same where checkpoints are not short beside the MTBF: training between
        two, with the checkpoint."""
        if self.recovery != "checkpoint" or self.mtbf_s == inf:
            return inf
        share = self.checkpoint_s / (2 * self.mtbf_s)
        if share >= 1:
            return self.mtbf_s + self.checkpoint_s
        return self.young_interval_s * (1 + sqrt(share) / 3 + share / 9)
