"""`Device`: one accelerator (or CPU rank) as its datasheet and measurements give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.errors import InvalidSpec, Unsupported
from profiles.hardware.precisions import Format
from profiles.hardware.quantity import Figure
from profiles.limits import require

MEMORIES = ("memory", "usable_memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device's ceilings. *peak* is the dense datasheet rate by number format.

    `memory` is what is sold, `usable_memory` what the device offers to a process
    (nvidia-smi's total). `multiprocessors` (SMs, CUs) set the wave quantisation of
    matrix kernels. `kin` names the device whose fitted shape-efficiency is borrowed
    where this one has no samples.
    """

    name: str
    architecture: str
    memory: Figure
    usable_memory: Figure
    memory_bandwidth: Figure
    peak: Mapping[str, Figure]
    multiprocessors: int
    host_link: Figure
    power: Figure | None = None
    kin: str | None = None
    aliases: tuple[str, ...] = ()
    source: str = ""  # of the counts that are no figures
    notes: str = ""
    cost: Figure | None = None  # dollars for one device and hour, on demand
    extra: Mapping[str, Figure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = set(self.peak) - {item.value for item in Format}
        if unknown:
            raise InvalidSpec(f"{self.name}: unknown number formats {sorted(unknown)}")
        require(
            "multiprocessors", self.multiprocessors, f"{self.name}: multiprocessors"
        )
        self._require_units()
        for name in MEMORIES:
            require("memory", getattr(self, name).si, f"{self.name}: {name}")
        for name, figure in self.extra.items():
            figure.require_sane(f"{self.name}: extra.{name}")

    def _require_units(self) -> None:
        rates = ("memory_bandwidth", "host_link")
        figures = [
            *((name, getattr(self, name), "bytes") for name in MEMORIES),
            *((name, getattr(self, name), "bytes a second") for name in rates),
            *(
                (f"peak.{name}", one, "FLOP a second")
                for name, one in self.peak.items()
            ),
            ("power", self.power, "watts"),
            ("cost", self.cost, "dollars an hour"),
        ]
        for name, figure, dimension in figures:
            if figure is not None:
                figure.require(dimension, f"{self.name}: {name}")
                if not figure.value and dimension.endswith("a second"):
                    raise InvalidSpec(
                        f"{self.name}: {name} is 0; give what the device does, above 0"
                    )

    @property
    def capacity_bytes(self) -> float:
        return self.usable_memory.si

    @property
    def memory_bytes_per_s(self) -> float:
        return self.memory_bandwidth.si

    def peak_flops_per_s(self, number: Format) -> float:
        """Dense peak of matrix products in *number*, FLOP/s.

        Raises Unsupported if the device has no such format.
        """
        if number not in self.peak:
            raise Unsupported(
                f"{self.name} does not multiply in {number.value}; "
                f"it has {', '.join(self.peak)}"
            )
        return self.peak[number].si
