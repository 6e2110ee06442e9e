"""Does the order of estimates agree with the order of measurements?

tau       (concordant - discordant) / pairs, within a group            → kendall_tau
regret    what the run that looks fastest costs over the one that is   → regret
means     over groups; and over sources of the mean over their groups  → over_groups
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np

Pairs = Sequence[tuple[float, float]]  # estimated and measured seconds
Groups = Mapping[tuple[Any, Any], Pairs]  # by source, and by what is alike
SMALLEST_GROUP: Final = 4
SAME: Final = 0.01  # measurements nearer than this are not told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """A figure of groups; None where there is no group."""

    by_source: float | None  # the mean over sources of the mean over groups
    by_group: float | None
    groups: int


def kendall_tau(pairs: Pairs) -> float | None:
    """(concordant - discordant) / pairs that measurements tell apart; None if none do.

    Equal estimates of unlike measurements count for neither (Kendall, 1938).

    >>> kendall_tau([(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)])
    0.3333333333333333
    """
    estimated, measured = np.array(pairs, dtype=float).reshape(-1, 2).T
    first, second = np.triu_indices(len(measured), k=1)
    apart = measured[first] - measured[second]
    told = np.abs(apart) > SAME * np.minimum(measured[first], measured[second])
    if not told.any():
        return None
    agreed = np.sign(apart) * np.sign(estimated[first] - estimated[second])
    return float(agreed[told].mean())


def regret(pairs: Pairs) -> float:
    """How much longer the run estimated fastest took than the fastest one; of several
    estimated alike (one layout measured again) the mean, whatever their order.

    >>> regret([(1.0, 1.5), (2.0, 1.0)])
    0.5
    >>> regret([(1.0, 1.5), (1.0, 1.0)])
    0.25
    """
    least = min(estimated for estimated, _ in pairs)
    chosen = fmean(measured for estimated, measured in pairs if estimated == least)
    return chosen / min(measured for _, measured in pairs) - 1


def over_groups(
    groups: Groups,
    figure: Callable[[Pairs], float | None],
) -> Means:
    """*figure* of each (source, group) of four runs or more, averaged both ways."""
    found: dict[Any, list[float]] = defaultdict(list)
    for (source, _), pairs in groups.items():
        value = figure(pairs) if len(pairs) >= SMALLEST_GROUP else None
        if value is not None:
            found[source].append(value)
    every = [value for values in found.values() for value in values]
    return Means(
        by_source=mean([fmean(values) for values in found.values()]),
        by_group=mean(every),
        groups=len(every),
    )


def mean(values: Sequence[float]) -> float | None:
    """Their mean; None of nothing."""
    return fmean(values) if values else None
