"""Coefficients: what published training runs say that kernels alone do not.

A rate of a kernel or a link is measured alone. Inside training clocks are shared with
memory traffic, a host issues kernels one by one, and frameworks differ in what they
fuse and hide. Each such difference is one positive number with a name,

    quantity/owner[/narrower]      product/hopper, host/megatron, link/infiniband/ampere

owned by a device, a link, a kernel or a framework, never by a model, a paper or a row.
`benchmarks/fit_runs.py` fits them and writes `data/coefficients.json`: each has the
prior that it is held to, its standard error and how many runs it moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from profiles.errors import InvalidFile, UnknownName

PATH: Final = Path(__file__).parent / "data" / "coefficients.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One fitted number. `spread` and `error` are standard deviations of its logarithm:
    of the prior, and of the fit; `rows` is how many runs its fit hangs on."""

    name: str
    meaning: str
    prior: float
    spread: float
    source: str  # of the prior
    value: float
    error: float
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """A value for each name, and how it came about."""

    entries: tuple[Coefficient, ...]

    def of(self, quantity: str, *owners: str) -> float:
        """The value of *quantity* for the first of *owners* that has one, else of all;
        1 where nobody has.

        >>> Coefficients(entries=()).of("product", "hopper")
        1.0
        """
        values = self.values
        for owner in owners:
            name = f"{quantity}/{owner}"
            if name in values:
                return values[name]
        return values.get(quantity, 1.0)

    @property
    def values(self) -> Mapping[str, float]:
        return {item.name: item.value for item in self.entries}

    def changed(self, values: Mapping[str, float]) -> Coefficients:
        """The same coefficients with other *values*; raises UnknownName."""
        known = {item.name for item in self.entries}
        for name in values:
            if name not in known:
                raise UnknownName("coefficient", name, known)
        return Coefficients(
            entries=tuple(
                replace(item, value=values.get(item.name, item.value))
                for item in self.entries
            )
        )


@lru_cache(maxsize=1)
def coefficients() -> Coefficients:
    """The fitted ones; raises InvalidFile if their file is damaged."""
    try:
        entries = msgspec.json.decode(PATH.read_bytes(), type=tuple[Coefficient, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidFile(f"{PATH} does not hold coefficients: {error}") from error
    return Coefficients(entries=entries)


def encoded(entries: Iterable[Coefficient]) -> bytes:
    """The file's bytes, one coefficient a line."""
    lines = (msgspec.json.encode(item).decode() for item in entries)
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()
