"""`Fit`: seconds of shapes that were not measured, from those of their kind that were.

    base(s)   = c0 + c1·work(s) + c2·bytes(s) + …,  c >= 0     least squares in t/base
    t(s)      = base(s) · exp(Σ w_i log(t_i / base(s_i)))      w_i ~ 1/distance⁴

The base is physics: an overhead, FLOPs and bytes at one rate each, so that it rises
with every dimension and goes on in proportion beyond the samples. What is left of each
sample is carried over to the shapes near it, in the logarithm of the dimensions
(inverse distance weighting, Shepard 1968): a fit goes through its samples.

A fit reaches `REACH` times below and above the work of its samples: there it misses by
8 % in the median (`benchmarks/sample_fit.py`), as fitted rates do; beyond, by more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Final

import numpy as np

from profiles.arrays import Array

Terms = Callable[..., Sequence[Any]]
REACH: Final = 8.0
_POWER: Final = 4.0
_HELD_OUT: Final = 200  # samples of a table that are held out, at most


def _matmul(m: Array, n: Array, k: Array) -> Sequence[Any]:
    return m * n * k, m * k + n * k + m * n


def _attention(b: Array, heads: Array, kv: Array, s: Array, d: Array) -> Sequence[Any]:
    return b * heads * s * s * d, b * (heads + kv) * s * d


def _lookup(rows: Array, table: Array, width: Array) -> Sequence[Any]:
    return rows * width, table * width  # the backward fills a dense gradient


def _grouped(m: Array, experts: Array, n: Array, k: Array) -> Sequence[Any]:
    return m * n * k, m * k + experts * n * k + m * n, experts


def _top_k(rows: Array, experts: Array, chosen: Array) -> Sequence[Any]:
    return rows * experts, rows * chosen


def _by_token(rows: Array, chosen: Array, width: Array) -> Sequence[Any]:
    return rows * width, rows, rows * width / chosen


def _elements(*dims: Array) -> Sequence[Any]:
    whole: Array = np.prod(np.stack(dims), axis=0)
    return (whole, whole / dims[-1]) if len(dims) > 1 else (whole,)


_TERMS: Final[Mapping[str, Terms]] = {
    "matmul": _matmul,
    "attention": _attention,
    "lookup": _lookup,
    "grouped-matmul": _grouped,
    "top-k": _top_k,
    "dispatch": _by_token,
    "combine": _by_token,
}


def terms(kind: str, shapes: Array) -> Array:
    """What the seconds of *kind* grow with, [shapes, terms]; the first is its work.

    >>> terms("matmul", np.array([[2, 3, 4]])).tolist()
    [[24.0, 26.0, 1.0]]
    """
    dims = np.asarray(shapes, dtype=np.float64).T
    grow: Terms = _TERMS.get(kind, _elements)
    return np.stack([*grow(*dims), np.ones(len(shapes))], axis=1)


@dataclass(kw_only=True, eq=False)
class Fit:
    """The fit of one table: samples of one kind and pass, [samples, dimensions]."""

    kind: str
    shapes: Array
    seconds: Array

    def at(self, shapes: Array) -> Array:
        """Seconds of *shapes*; NaN where no sample is near enough in work."""
        grown = terms(self.kind, shapes)
        far = (grown[:, 0] < self.reach[0]) | (grown[:, 0] > self.reach[1])
        factor = np.exp(_carried(np.log(shapes), self._places, self._left))
        return np.where(far, np.nan, (grown * self.base).sum(axis=1) * factor)

    @cached_property
    def reach(self) -> tuple[float, float]:
        """Least and most work of a shape that is priced by this fit."""
        work = terms(self.kind, self.shapes)[:, 0]
        return float(work.min() / REACH), float(work.max() * REACH)

    @cached_property
    def base(self) -> Array:
        """The coefficients of `terms`; one for every two samples."""
        grown = terms(self.kind, self.shapes)
        relative = grown / self.seconds[:, None]
        return _least_squares(relative, most=max(len(self.seconds) // 2, 1))

    @cached_property
    def residual(self) -> float:
        """Median |t / fitted − 1| of samples that the carrying over has not seen."""
        errors = np.abs(np.expm1(self.left_out))
        return float(np.median(errors)) if len(errors) else 0.0

    @cached_property
    def left_out(self) -> Array:
        """log(t / fitted) of each sample from all the others, the base kept."""
        count = len(self.seconds)
        if count < 2:
            return np.zeros(0)
        chosen = np.unique(np.linspace(0, count - 1, min(count, _HELD_OUT)).astype(int))
        distance = _distances(self._places[chosen], self._places)
        distance[np.arange(len(chosen)), chosen] = np.inf
        return np.asarray(self._left[chosen] - _weighted(distance, self._left))

    @cached_property
    def _places(self) -> Array:
        return np.asarray(np.log(self.shapes))

    @cached_property
    def _left(self) -> Array:
        base_s = terms(self.kind, self.shapes) @ self.base
        return np.asarray(np.log(self.seconds / base_s))


def _carried(asked: Array, places: Array, left: Array) -> Array:
    return _weighted(_distances(asked, places), left)


def _distances(some: Array, others: Array) -> Array:
    apart = some[:, None, :] - others[None, :, :]
    return np.asarray(np.sqrt((apart**2).sum(axis=2)))


def _weighted(distance: Array, left: Array) -> Array:
    nearest = np.maximum(distance.min(axis=1, keepdims=True), 1e-9)
    weights = (nearest / np.maximum(distance, 1e-9)) ** _POWER
    # Row by row: a shape's price must not depend on what else is asked.
    return np.asarray((weights * left).sum(axis=1) / weights.sum(axis=1))


def _least_squares(relative: Array, most: int) -> Array:
    """c >= 0 with the least |relative·c − 1|, of at most *most* terms besides zeros.

    There are three or four terms: every set of them is tried.
    """
    count = relative.shape[1]
    best, found = np.inf, np.zeros(count)
    for size in range(1, min(most, count) + 1):
        for chosen in combinations(range(count), size):
            part = relative[:, chosen]
            scale = np.abs(part).max(axis=0)
            solved, *_ = np.linalg.lstsq(part / scale, np.ones(len(part)), rcond=None)
            solved = solved / scale
            error = float(((part @ solved - 1.0) ** 2).sum())
            if (solved < 0).any() or error >= best * (1 - 1e-9):
                continue
            best, found = error, np.zeros(count)
            found[list(chosen)] = solved
    return found
