"""The learning rate as a function of the step alone, so that a resumed run has it too.

    constant   lr
    linear     from lr down to the least, in proportion
    cosine     from lr down to the least, along half a cosine
               (Loshchilov and Hutter, ICLR 2017)
    wsd        lr, and over the last fifth of the steps in proportion down to the least
               (warm-up, stable, decay: Hu et al., MiniCPM, 2024)

Each of them after a warm-up in proportion to the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Final

from profiles.errors import Contradiction

DECAY: Final = 0.2  # of the steps, at the end of wsd
# What is left of the way from lr to the least, at a fraction of the steps.
KINDS: Final[dict[str, Callable[[float], float]]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: (1.0 + cos(pi * done)) / 2.0,
    "wsd": lambda done: min(1.0, (1.0 - done) / DECAY),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """The rate of every step, from *steps* in all; `kind` is one of `KINDS`."""

    lr: float
    steps: int
    kind: str = "constant"
    warmup_steps: int = 0
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_steps >= self.steps and self.warmup_steps:
            raise Contradiction(
                f"--warmup-steps {self.warmup_steps} leaves none of the {self.steps} "
                "steps of the schedule; choose fewer"
            )
        if self.least > self.lr:
            raise Contradiction(
                f"--min-lr {self.least:g} is above --lr {self.lr:g}; choose less"
            )

    def at(self, step: int) -> float:
        """The rate of step *step*, from 0.

        >>> rate = LearningRate(lr=1.0, steps=12, kind="linear", warmup_steps=2)
        >>> [rate.at(step) for step in (0, 1, 2, 7, 12)]
        [0.5, 1.0, 1.0, 0.5, 0.0]
        """
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        whole = self.steps - self.warmup_steps
        done = min((step - self.warmup_steps) / whole, 1.0)
        return self.least + (self.lr - self.least) * KINDS[self.kind](done)
