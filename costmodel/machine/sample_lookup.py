"""`Table`: the samples of one kind, pass and precision, looked up by shape.

A shape that was measured has its sample; one that was not, the fit through the others.

`Fit`: seconds of shapes that were not measured, from those of their kind that were.

    base(s)   = c0 + c1·work(s) + c2·bytes(s) + …,  c >= 0     least squares in t/base
    t(s)      = base(s) · exp(Σ w_i log(t_i / base(s_i)))      w_i ~ 1/distance⁴

The base is physics: an overhead, FLOPs and bytes at one rate each, so that it rises
with every dimension and goes on in proportion beyond the samples. What is left of each
sample is carried over to the shapes near it, in the logarithm of the dimensions
(inverse distance weighting, Shepard 1968): a fit goes through its samples.

A fit reaches `REACH` times below and above the work of its samples: there it misses by
8 % in the median (`benchmarks/sample_fit.py`), as fitted rates do; beyond, by more.

`MessageTable`: seconds of one collective over bytes, as it was measured.

Between two samples a power law through both, below the first its seconds, above the
last its rate (`profiles.samples.table`); more bytes never take less time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Final

import numpy as np

from costmodel.machine.provenance import Sourced, known
from profiles.arrays import Array
from profiles.samples import CONVOLUTIONS, Curve, Sample, Samples, made_monotone

Shape = tuple[int, ...]
Terms = Callable[..., Sequence[Any]]
REACH: Final = 8.0
_POWER: Final = 4.0
_HELD_OUT: Final = 200  # samples of a table that are held out, at most
# A spread is an interquartile range: 1.349 standard deviations of a normal law.
QUARTILES: Final = 1.349


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


def _convolution(
    batch: Array, given: Array, made: Array, groups: Array, *sides: Array
) -> Sequence[Any]:
    each = len(sides) // 4
    before, after, window = (
        np.prod(np.stack(sides[each * n : each * (n + 1)]), axis=0) for n in range(3)
    )
    weights = given * made * window / groups
    turned = after > before  # a window for each position that it is given
    rows = np.where(turned, batch * before, batch * after)
    return rows * weights, batch * (given * before + made * after) + weights


def _pool(batch: Array, channels: Array, *sides: Array) -> Sequence[Any]:
    each = len(sides) // 3
    before = np.prod(np.stack(sides[:each]), axis=0)
    return (batch * channels * before,)


def _bag(batch: Array, bag: Array, table: Array, width: Array) -> Sequence[Any]:
    return batch * bag * width, table * width


_TERMS: Final[Mapping[str, Terms]] = {
    "full-attention": _attention,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(("max-pool-1d", "max-pool-2d", "max-pool-3d"), _pool),
    "embedding-bag": _bag,
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
