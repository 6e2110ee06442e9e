"""`MessageTable`: seconds of one collective over bytes, as it was measured.

Between two samples a power law through both, below the first its seconds, above the
last its rate (`profiles.curve`); more bytes never take less time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.sample_table import QUARTILES, Shape
from costmodel.sourced import Sourced, known
from profiles.curve import Curve, made_monotone
from profiles.samples import Sample, Samples

Array = NDArray[Any]


@dataclass(kw_only=True, eq=False)
class MessageTable:
    """The samples of one group shape by bytes of the full tensor."""

    samples: Mapping[int, Sample]

    def at(self, size_bytes: Array) -> Sourced:
        """Seconds at *size_bytes*."""
        place = np.searchsorted(self._sizes, size_bytes)
        exact = self._sizes[np.minimum(place, len(self._sizes) - 1)] == size_bytes
        sigma = np.where(exact, self.spread, self.sigma)
        return known(self.curve.at(size_bytes), exact, sigma)

    def instead_of(
        self, plain: MessageTable, size_bytes: Array, seconds: Sourced, weight: Array
    ) -> Sourced:
        """*seconds* of *plain* at *size_bytes*, less what these samples save, as far as
        *weight*. Beyond the largest of them that stays the same."""
        within = np.minimum(size_bytes, self._sizes[-1])
        saved = np.maximum(plain.curve.at(within) - self.curve.at(within), 0.0)
        return seconds.behind(saved * weight)

    @cached_property
    def _sizes(self) -> Array:
        return np.array(sorted(self.samples), dtype=np.float64)

    @cached_property
    def curve(self) -> Curve:
        return _curve(self.samples)

    @property
    def spread(self) -> float:
        """Relative standard deviation of a sample, typically."""
        spreads = [item.spread for item in self.samples.values()]
        return float(np.median(spreads)) / QUARTILES

    @cached_property
    def sigma(self) -> float:
        """Relative standard deviation between samples."""
        return float(np.hypot(self.spread, self.residual))

    @cached_property
    def residual(self) -> float:
        """Median |measured / curve − 1| of samples between others, each left out."""
        sizes = sorted(self.samples)
        errors = []
        for size in sizes[1:-1]:
            others = {one: self.samples[one] for one in sizes if one != size}
            fitted = float(_curve(others).at(size))
            errors.append(abs(self.samples[size].seconds / fitted - 1.0))
        return float(np.median(errors)) if errors else 0.0


def message_tables(
    samples: Samples,
) -> dict[tuple[str, str, Shape], dict[int, MessageTable]]:
    """Tables by (fabric, collective, ranks by level), then by groups at once."""
    found: dict[tuple[str, str, Shape], dict[int, dict[int, Sample]]] = {}
    for key, sample in samples.collectives.items():
        name = (key.fabric.lower(), key.collective, key.ranks)
        sizes = found.setdefault(name, {}).setdefault(key.groups_at_once, {})
        sizes[key.size_bytes] = sample
    return {
        name: {groups: MessageTable(samples=sizes) for groups, sizes in tables.items()}
        for name, tables in found.items()
    }


def _curve(samples: Mapping[int, Sample]) -> Curve:
    pairs = [(float(size), item.seconds) for size, item in samples.items()]
    return made_monotone(*zip(*pairs, strict=True))
