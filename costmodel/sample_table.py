"""`Table`: the samples of one kind, pass and precision, looked up by shape.

A shape that was measured has its sample; one that was not, the fit through the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.sample_fit import Fit
from costmodel.sourced import Sourced, known
from profiles.samples import Sample

Array = NDArray[Any]
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
