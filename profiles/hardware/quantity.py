"""`Figure`: a number of a catalogue together with its unit and its source."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InvalidSpec
from profiles.limits import require
from profiles.units import GB, GBIT_BYTES, GFLOPS, TB, TFLOPS, US, GiB

_DIMENSIONS = {
    "bytes": {"B": 1.0, "GB": float(GB), "TB": float(TB), "GiB": float(GiB)},
    "bytes a second": {"GB/s": float(GB), "TB/s": 1e3 * GB, "Gbit/s": GBIT_BYTES},
    "FLOP a second": {"TFLOP/s": TFLOPS, "GFLOP/s": GFLOPS},
    "seconds": {"us": US, "s": 1.0},
    "watts": {"W": 1.0},
    "dollars an hour": {"USD/h": 1.0},
    "a number": {"": 1.0},
}
_SCALES = {unit: scale for kin in _DIMENSIONS.values() for unit, scale in kin.items()}
_DIMENSION = {unit: kin for kin, units in _DIMENSIONS.items() for unit in units}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published or measured number, as printed there: 2.0 TB/s, not 2e12."""

    value: float
    unit: str
    source: str

    def __post_init__(self) -> None:
        if self.unit not in _SCALES:
            known = ", ".join(repr(unit) for unit in _SCALES)
            raise InvalidSpec(f"unit {self.unit!r} is unknown; write one of {known}")

    @property
    def si(self) -> float:
        """The number in bytes, bytes/s, FLOP/s, seconds, watts or dollars an hour."""
        return self.value * _SCALES[self.unit]

    def require(self, dimension: str, what: str) -> None:
        """Raise InvalidSpec, naming *what* it is, unless it measures *dimension*, and
        as much of it as there may be."""
        units = _DIMENSIONS[dimension]
        if self.unit not in units:
            raise InvalidSpec(
                f"{what} is {self.value:g} {self.unit}; it is measured in {dimension}: "
                f"write one of {', '.join(units)}"
            )
        self.require_sane(what)

    def require_sane(self, what: str) -> None:
        """Raise InvalidSpec, naming *what* it is, for more or less than there may be of
        what it measures (`profiles.limits`)."""
        require(_DIMENSION[self.unit], self.si, what)
