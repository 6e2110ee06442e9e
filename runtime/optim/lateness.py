"""Remedies for gradients that are late: a pipeline that does not flush updates weights
with gradients of weights that are D updates old.

    spike     what a late gradient has missed is made good at once (spike compensation):
              v = mu·v + g,  w = w - lr·(a·v + b·g),  a = mu^D,  b = (1 - mu^D)/(1 - mu)
    predict   a forward runs with what the weights will be at its backward (linear
              weight prediction): w - lr·D·v
              (both Kosson et al., MLSys 2021, sections 3.2 and 3.3; of momentum v)
    t1        step k of K begins slower where gradients are later: lr/tau^(1 - min(k/K,
              1)), tau = (2·(p - i) + 1)/M of stage i of p; not where tau is below 1
    t2        a backward runs with what the weights were at its forward, as far as their
              mean step delta tells: w - D·delta, of which delta forgets e^-2 in D steps
              (both Yang et al., MLSys 2021, sections 3.1 and 3.2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from profiles.errors import Contradiction

REMEDIES: Final = ("none", "spike", "predict", "spike+predict", "t1", "t1+t2")
OF_MOMENTUM: Final = ("spike", "predict")
OF_ONE_COPY: Final = ("predict", "t2")  # else both passes have the same weights


def require_remedy(name: str, *, optimizer: str, stashes: bool) -> None:
    """Raise Contradiction for remedies that *optimizer* has no momentum for, or that a
    schedule which *stashes* weights has no use for."""
    parts = name.split("+")
    if optimizer != "sgd-momentum" and set(parts) & set(OF_MOMENTUM):
        raise Contradiction(
            f"--stale-gradients {name} is of SGD's momentum, and the optimizer here "
            f"is {optimizer}; plan with --optimizer sgd-momentum, or choose t1 or none"
        )
    if stashes and set(parts) & set(OF_ONE_COPY):
        raise Contradiction(
            f"--stale-gradients {name} exchanges the weights of one of the two passes, "
            "and this schedule keeps those of the forward for its backward; choose "
            "spike, t1 or none, or the schedule pipemare or pb"
        )


def spike_factors(momentum: float, late: float) -> tuple[float, float]:
    """(a, b): what the velocity and the gradient count.

    >>> spike_factors(0.5, 0), spike_factors(0.5, 2)
    ((1.0, 0.0), (0.25, 1.5))
    """
    a = momentum**late
    return a, (1 - a) / (1 - momentum)


def rate_factor(step: int, steps: int, tau: float) -> float:
    """T1: what the learning rate of *step* (from 0) of so many is multiplied by.

    >>> [rate_factor(step, 4, 16.0) for step in (0, 2, 4, 9)]
    [0.0625, 0.25, 1.0, 1.0]
    """
    power = 1 - min(step / steps, 1) if steps else 0.0
    return 1 / float(max(tau, 1.0) ** power)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """A stage whose gradients are *updates* late; *tau* as PipeMare counts it."""

    updates: float
    tau: float
