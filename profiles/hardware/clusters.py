"""`Cluster`: its islands, links and devices.

Each number is a `Figure`, with its unit and its source: a datasheet or a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from profiles.errors import InvalidSpec, Unsupported
from profiles.hardware.precisions import Format
from profiles.limits import require
from profiles.units import (
    DAY_S,
    GB,
    GBIT_BYTES,
    GFLOPS,
    HOUR_S,
    TB,
    TFLOPS,
    US,
    GiB,
)

DIMENSIONS = {
    "bytes": {"B": 1.0, "GB": float(GB), "TB": float(TB), "GiB": float(GiB)},
    "bytes a second": {"GB/s": float(GB), "TB/s": 1e3 * GB, "Gbit/s": GBIT_BYTES},
    "FLOP a second": {"TFLOP/s": TFLOPS, "GFLOP/s": GFLOPS},
    "seconds": {"us": US, "s": 1.0},
    "time between failures": {"h": HOUR_S, "days": DAY_S},
    "watts": {"W": 1.0},
    "dollars an hour": {"USD/h": 1.0},
    "a number": {"": 1.0},
}
_SCALES = {unit: scale for kin in DIMENSIONS.values() for unit, scale in kin.items()}
_DIMENSION = {unit: kin for kin, units in DIMENSIONS.items() for unit in units}


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
        as much of it as there may be: of rates more than none."""
        units = DIMENSIONS[dimension]
        if self.unit not in units:
            raise InvalidSpec(
                f"{what} is {self.value:g} {self.unit}; it is measured in {dimension}: "
                f"write one of {', '.join(units)}"
            )
        self.require_sane(what)
        if not self.value and dimension.endswith("a second"):
            raise InvalidSpec(f"{what} is 0; give a value above 0")

    def require_sane(self, what: str) -> None:
        """Raise InvalidSpec, naming *what* it is, for more or less than there may be of
        what it measures (`profiles.limits`)."""
        require(_DIMENSION[self.unit], self.si, what)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the fabric: domains of *devices* devices that it joins.

    `bandwidth` is one way and per device: a node's NICs are divided by its devices.
    `devices` is None for the outermost level. `latency` is that of one hop. `ports` is
    how many a domain has to the outermost level, where its devices do not have one
    each: what one device sends goes through one of them. With `rails` the outermost
    level joins device i of a domain with device i of the others alone, and no spine
    joins the rails: what is for another device goes through a domain first.
    """

    name: str
    kind: str  # nvlink, nvswitch, xgmi, pcie, infiniband, roce, efa, ethernet …
    devices: int | None
    bandwidth: Figure
    latency: Figure
    ports: int | None = None
    rails: bool = False

    def __post_init__(self) -> None:
        self.bandwidth.require("bytes a second", f"bandwidth of level {self.name!r}")
        self.latency.require("seconds", f"latency of level {self.name!r}")
        for name in ("devices", "ports"):
            if getattr(self, name) is not None:
                what = f"{name} of level {self.name!r}"
                require("devices", getattr(self, name), what)
        if self.rails and (self.devices is not None or self.ports is not None):
            raise InvalidSpec(
                f"level {self.name!r}: rails join whole domains, a port a device; "
                "leave its devices and ports null"
            )

    @property
    def bytes_per_s(self) -> float:
        return self.bandwidth.si

    @property
    def latency_s(self) -> float:
        return self.latency.si


# What is said of a node, and what it measures.
OF_A_NODE = {
    "host_memory": "bytes",
    "nvme": "bytes",
    "drive_read": "bytes a second",
    "drive_write": "bytes a second",
    "price": "dollars an hour",
    "power": "watts",
    "mtbf": "time between failures",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """Like nodes on one fabric. `nodes` is None where as many as asked are there.

    `host_memory` and `nvme` are what a node's processors and drives hold, None where
    nobody says: what is offloaded to them is then not limited. `drive_read` and
    `drive_write` are what its drives read and write together, bytes a second. A node
    costs `price` an hour and draws `power`, all of it; without them its devices' own
    are counted. It fails once in `mtbf` (mean time between failures).
    """

    device: Device
    devices_per_node: int
    nodes: int | None
    levels: tuple[Level, ...]  # innermost first
    host_memory: Figure | None = None
    nvme: Figure | None = None
    drive_read: Figure | None = None
    drive_write: Figure | None = None
    price: Figure | None = None
    power: Figure | None = None
    mtbf: Figure | None = None

    def __post_init__(self) -> None:
        sizes = [level.devices for level in self.levels]
        if not self.levels or sizes[-1] is not None or None in sizes[:-1]:
            raise InvalidSpec(_levels_wrong(sizes))
        require("devices", self.devices_per_node, "devices_per_node of an island")
        if self.nodes is not None:
            require("devices", self.nodes, "nodes of an island")
            require("devices", self.nodes * self.devices_per_node, "an island's size")
        inner = [size for size in sizes if size is not None]
        if inner != sorted(inner):
            raise InvalidSpec("levels go from the innermost domain to the outermost")
        self._require_nested(inner)
        for name, dimension in OF_A_NODE.items():
            figure = getattr(self, name)
            if figure is not None:
                figure.require(dimension, f"{name} of a node")

    def _require_nested(self, sizes: Sequence[int]) -> None:
        """Raise InvalidSpec for domains, or nodes, that cut each other."""
        whole = [*sizes, self.devices_per_node]
        for size, other in combinations(sorted(whole), 2):
            if other % size:
                raise InvalidSpec(
                    f"domains of {size} and {other} devices overlap (levels "
                    f"{sizes or 'without a size'}, devices_per_node "
                    f"{self.devices_per_node}); each has to divide the larger one"
                )

    @property
    def gpus(self) -> int | None:
        return None if self.nodes is None else self.nodes * self.devices_per_node

    @property
    def device_dollars_per_h(self) -> float | None:
        """What a device costs an hour: its share of the node's price, or its own."""
        return self._share(self.price, self.device.cost)

    @property
    def device_power_w(self) -> float | None:
        """What a device draws: its share of the node's power, or its own."""
        return self._share(self.power, self.device.power)

    def _share(self, of_node: Figure | None, own: Figure | None) -> float | None:
        if of_node is not None:
            return of_node.si / self.devices_per_node
        return None if own is None else own.si

    @property
    def domain(self) -> int:
        """Devices joined by the fast fabric: the innermost level's size."""
        return self.levels[0].devices or self.devices_per_node


def _levels_wrong(sizes: Sequence[int | None]) -> str:
    """What is missing from, or too much in, levels of such *sizes*."""
    if not sizes:
        return (
            "an island has no levels: give the link that joins its devices and, as the "
            "last level, with devices null, the network that joins its nodes"
        )
    if sizes[-1] is not None:
        return (
            f"an island's outermost level joins {sizes[-1]} devices, and nothing joins "
            "more: add the network between nodes as a last level with devices null"
        )
    return "an island's last level, and no other, has devices=null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One or more islands; `between` joins unlike ones.

    `blocks_launches`: jobs run there with CUDA_LAUNCH_BLOCKING=1, so that a host waits
    for each kernel before it issues the next one.
    """

    name: str
    islands: tuple[Island, ...]
    between: Level | None = None
    blocks_launches: bool = False
    source: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        if not self.islands:
            raise InvalidSpec(f"cluster {self.name!r} has no islands")
        if len(self.islands) > 1 and self.between is None:
            raise InvalidSpec(f"cluster {self.name!r}: islands need a link between")

    @property
    def island(self) -> Island:
        """The one island of a uniform cluster; raises Unsupported for others."""
        if len(self.islands) > 1:
            raise Unsupported(
                f"cluster {self.name!r} joins {len(self.islands)} islands, and layouts "
                "are searched on one here: name one of them (`plan` and `simulate` take"
                " them together)"
            )
        return self.islands[0]

    @property
    def device(self) -> Device:
        return self.island.device

    @property
    def gpus(self) -> int | None:
        """How many devices there are, None where as many as asked."""
        counts = [island.gpus for island in self.islands]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def levels(self) -> tuple[Level, ...]:
        """The links of every island, and the one between them."""
        inside = [level for island in self.islands for level in island.levels]
        return (*inside, *(() if self.between is None else (self.between,)))

    def with_bandwidth(
        self, *, intra: Figure | None = None, inter: Figure | None = None
    ) -> Cluster:
        """The same cluster with other per-device link rates, one way."""
        island = self.island
        *nearer, outermost = island.levels
        if intra is not None and nearer:
            nearer[0] = replace(nearer[0], bandwidth=intra)
        if inter is not None:
            outermost = replace(outermost, bandwidth=inter)
        return replace(self, islands=(replace(island, levels=(*nearer, outermost)),))
