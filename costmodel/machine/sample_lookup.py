"""`Table`: the samples of one kind, pass and precision, looked up by shape.

A shape that was measured has its sample; one that was not, the fit through the others.

`MessageTable`: seconds of one collective over bytes, as it was measured.

Between two samples a power law through both, below the first its seconds, above the
last its rate (`profiles.samples.table`); more bytes never take less time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from costmodel.machine.provenance import Sourced, known
from costmodel.machine.sample_fit import Fit
from profiles.arrays import Array
from profiles.samples import Curve, Sample, Samples, made_monotone

Shape = tuple[int, ...]
# A spread is an interquartile range: 1.349 standard deviations of a normal law.
QUARTILES: Final = 1.349


@dataclass(kw_only=True, eq=False)
class Table:
    """Samples by shape; shapes that are not among them are fitted once."""

    kind: str
    samples: Mapping[Shape, Sample]
    _fitted: dict[Shape, float] = field(default_factory=dict)

    def at(self, dims: Sequence[Any]) -> Sourced:
        """Seconds of shapes, whose dimensions broadcast; NaN where nothing is known."""
        if all(np.ndim(item) == 0 for item in dims):  # one layout, not columns
            shape = tuple(int(np.rint(item)) for item in dims)
            self._fit([shape])
            return known(*map(np.asarray, self._found(shape)))
        wide = np.broadcast_arrays(*dims)
        rows = [np.rint(np.ravel(item)) for item in wide]
        shapes: list[Shape]
        if len(rows) == 1:  # of all parameters of columns: worth a flat search
            distinct, place = np.unique(rows[0], return_inverse=True)
            shapes = [(int(size),) for size in distinct.tolist()]
        else:
            found, place = np.unique(np.stack(rows, 1), axis=0, return_inverse=True)
            shapes = [tuple(map(int, row)) for row in found.tolist()]
        self._fit(shapes)
        table = np.array([self._found(shape) for shape in shapes])
        asked = table[place.ravel()].reshape(*wide[0].shape, 3)
        return known(asked[..., 0], asked[..., 1] > 0, asked[..., 2])

    @cached_property
    def fit(self) -> Fit:
        """The curve through all samples."""
        return Fit(
            kind=self.kind,
            shapes=np.array(list(self.samples)),
            seconds=np.array([item.seconds for item in self.samples.values()]),
        )

    @cached_property
    def sigma(self) -> float:
        """Relative standard deviation of what is fitted."""
        typical = float(np.median([item.spread for item in self.samples.values()]))
        return float(np.hypot(typical / QUARTILES, self.fit.residual))

    def _found(self, shape: Shape) -> tuple[float, float, float]:
        """Seconds, whether they are a sample's, and their relative deviation."""
        sample = self.samples.get(shape)
        if sample is not None:
            return sample.seconds, 1.0, sample.spread / QUARTILES
        return self._fitted[shape], 0.0, self.sigma

    def _fit(self, shapes: Sequence[Shape]) -> None:
        new = [
            shape
            for shape in shapes
            if shape not in self.samples and shape not in self._fitted
        ]
        if new:
            fitted = self.fit.at(np.maximum(np.array(new), 1))
            self._fitted.update(zip(new, fitted.tolist(), strict=True))


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
