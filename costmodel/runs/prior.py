"""What is known before any run of a user's own is seen: the published fit's covariance,
and how far one user's coefficients may lie from it.

`benchmarks/fit_runs.py` writes ``data/covariance.json`` beside the coefficients, and
`benchmarks/fit_prior.py` ``data/prior.json``: the latter by how well a few runs of a
published family foretell the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from costmodel.machine import PACE, Coefficients
from profiles.errors import InvalidFile

Floats = NDArray[np.float64]
_T = TypeVar("_T")
COVARIANCE: Final = Path(__file__).parents[1] / "data" / "covariance.json"
PRIOR: Final = Path(__file__).parents[1] / "data" / "prior.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariance:
    """Of the logarithms of fitted coefficients, by name; `coefficients` is their hash,
    and `rows` the lower triangle."""

    coefficients: str
    names: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, fitted: Coefficients, matrix: Floats) -> Covariance:
        """*matrix*, in the order of *fitted*."""
        names = tuple(item.name for item in fitted.entries)
        rows = tuple(
            tuple(float(f"{one:.4g}") for one in matrix[number, : number + 1])
            for number in range(len(names))
        )
        return cls(coefficients=fitted.digest, names=names, rows=rows)

    def matrix(self) -> Floats:
        """The whole of it."""
        found = np.zeros((len(self.names), len(self.names)))
        for number, row in enumerate(self.rows):
            found[number, : number + 1] = found[: number + 1, number] = row
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Standard deviations of the logarithm of what is kept, of GiB beside tensors, and
    of one run's peak around both, as a share of it."""

    kept: float
    beside_gib: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A user's coefficient is away from the published one by `drift` of the spread that
    it had before the fit. `paces` are standard deviations of the pace of a whole step
    by owner, `noise` is that of one run around all."""

    drift: float
    paces: Mapping[str, float]
    noise: float
    memory: Memory
    source: str

    def covariance(self, names: Sequence[str], fitted: Coefficients) -> Floats:
        """Of the logarithms of the parameters called *names*."""
        entries = {item.name: item for item in fitted.entries}
        found = np.zeros((len(names), len(names)))
        published, places = _published(fitted), {}
        for place, name in enumerate(names):
            if name in entries:
                found[place, place] = (self.drift * entries[name].spread) ** 2
                places[name] = place
            else:
                found[place, place] = self.paces[owner_of(name)] ** 2
        own = list(places.values())
        order = [item.name for item in fitted.entries]
        known = [order.index(name) for name in places]
        found[np.ix_(own, own)] += published[np.ix_(known, known)]
        return found


def owner_of(name: str) -> str:
    """Whose pace a parameter is.

    >>> owner_of("step/device:H100-SXM-80GB")
    'device'
    """
    return name.removeprefix(f"{PACE}/").partition(":")[0]


@lru_cache(maxsize=1)
def load_prior() -> Prior:
    """The installed one; raises InvalidFile if its file is damaged."""
    return _load(PRIOR, Prior)


def _published(fitted: Coefficients) -> Floats:
    """The covariance of the fit; where the file is of another one, the squares of the
    standard errors that stand beside the coefficients."""
    found = _covariance()
    if found is not None and found.coefficients == fitted.digest:
        return found.matrix()
    return np.diag([item.error**2 for item in fitted.entries])


@lru_cache(maxsize=1)
def _covariance() -> Covariance | None:
    return _load(COVARIANCE, Covariance) if COVARIANCE.exists() else None


def _load(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidFile(f"{path} does not hold a {kind.__name__}: {error}") from error
