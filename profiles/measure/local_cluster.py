"""The cluster `local`: the measured machine in the form of the catalogue's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from profiles.hardware import Cluster, Device, Figure, Island, Level, catalog
from profiles.measure.drives import UNMEASURED, DriveRates, with_drives
from profiles.measure.survey import Result
from profiles.measure.timing import FORWARD, Request
from profiles.samples import LOCAL, CollectiveKey, OperatorKey, Sample
from profiles.units import GB, GFLOPS, US, GiB

SOURCE = "measured by the command profile"
_NOTHING = Figure(value=0.0, unit="GiB", source="a process on a CPU has no context")


def cluster_of(
    request: Request,
    results: Sequence[Result],
    operators: Mapping[OperatorKey, Sample],
    collectives: Mapping[CollectiveKey, Sample],
    *,
    device: str,
    links: tuple[str, str],
    memory_bytes: float,
    drives: DriveRates = UNMEASURED,
) -> Cluster:
    """Nodes of as many devices as they had ranks, *memory_bytes* each; *links* are the
    kinds of what joins the ranks of a node, and nodes; *drives* are a node's."""
    copy = median(result.copy_bytes_per_s for result in results)
    near, far = links
    own = _level("node", near, (2,), collectives, copy)
    levels: tuple[Level, ...] = (own,)
    if request.nodes > 1:
        joined = _level("network", far, (1, 2), collectives, copy)
        levels = (replace(own, devices=request.local_ranks), joined)
    island = Island(
        device=_known(device)
        or _measured(request, results[0].facts, operators, device, copy, memory_bytes),
        devices_per_node=request.local_ranks,
        nodes=request.nodes,
        levels=levels,
    )
    island = with_drives(island, drives, f"{SOURCE}: states bucket by bucket")
    nodes = "One node" if request.nodes == 1 else f"{request.nodes} nodes"
    each = "" if request.nodes == 1 else " each"
    return Cluster(
        name=LOCAL,
        islands=(island,),
        source=SOURCE,
        notes=f"{nodes}, {request.local_ranks} ranks of {request.threads} threads"
        f"{each}.",
    )


def _level(
    name: str,
    kind: str,
    pair: tuple[int, ...],
    collectives: Mapping[CollectiveKey, Sample],
    copy_bytes_per_s: float,
) -> Level:
    """The outermost level, until a further one is around it."""
    times = {
        key.size_bytes: sample.seconds
        for key, sample in collectives.items()
        if (key.collective, key.ranks, key.groups_at_once) == ("send", pair, 1)
    }
    return Level(
        name=name,
        kind=kind,
        devices=None,
        bandwidth=_bandwidth(times, copy_bytes_per_s),
        latency=_latency(times),
    )


def _known(device: str) -> Device | None:
    """The catalogue's GPU, where it has it: its ceilings are those of the datasheet."""
    return catalog.device(device) if device in catalog.device_names() else None


def _measured(
    request: Request,
    facts: Mapping[str, str],
    operators: Mapping[OperatorKey, Sample],
    device: str,
    copy_bytes_per_s: float,
    memory_bytes: float,
) -> Device:
    copied = Figure(
        value=copy_bytes_per_s / GB, unit="GB/s", source=f"{SOURCE}: a copy"
    )
    on_cpu = request.device == "cpu"
    own = memory_bytes if on_cpu else facts["device memory bytes"]
    memory = Figure(
        value=float(own) / GiB,
        unit="GiB",
        source=f"available memory over {request.local_ranks} ranks"
        if on_cpu
        else SOURCE,
    )
    return Device(
        name=device,
        architecture="cpu" if on_cpu else facts["architecture"],
        memory=memory,
        usable_memory=memory,
        memory_bandwidth=copied,
        peak={name: _peak(operators, name) for name in _multiplied(operators)},
        multiprocessors=int(facts.get("multiprocessors", request.threads)),
        host_link=_host_link(operators),
        extra={"context": _NOTHING, "communicator": _NOTHING} if on_cpu else {},
        source=SOURCE,
        notes="One rank, with the others at work beside it.",
    )


def _multiplied(operators: Mapping[OperatorKey, Sample]) -> tuple[str, ...]:
    """The formats of products."""
    products = (key for key in operators if key.kind == "matmul")
    return tuple(dict.fromkeys(key.precision for key in products))


def _host_link(operators: Mapping[OperatorKey, Sample]) -> Figure:
    """Bytes a second one way, of the largest copy to the host and back."""
    copies = {
        key.shape[0]: sample.seconds
        for key, sample in operators.items()
        if key.kind == "host-copy"
    }
    size = max(copies)
    return Figure(
        value=2 * size / copies[size] / GB,
        unit="GB/s",
        source=f"{SOURCE}: {size} bytes to the host and back",
    )


def _peak(operators: Mapping[OperatorKey, Sample], precision: str) -> Figure:
    """The best rate of a product's forward."""
    rates = [
        2 * key.shape[0] * key.shape[1] * key.shape[2] / sample.seconds
        for key, sample in operators.items()
        if key.kind == "matmul"
        and key.direction == FORWARD
        and key.precision == precision
    ]
    return Figure(
        value=max(rates) / GFLOPS, unit="GFLOP/s", source=f"{SOURCE}: best product"
    )


def _bandwidth(times: Mapping[int, float], copy_bytes_per_s: float) -> Figure:
    """Of messages from one rank to another, seconds by bytes, less their latency."""
    if len(times) < 2:
        return Figure(
            value=copy_bytes_per_s / GB, unit="GB/s", source="one rank: a copy's"
        )
    smallest, largest = min(times), max(times)
    seconds = max(times[largest] - times[smallest], 1e-9)
    return Figure(
        value=(largest - smallest) / seconds / GB,
        unit="GB/s",
        source=f"{SOURCE}: messages of {largest} bytes",
    )


def _latency(times: Mapping[int, float]) -> Figure:
    if not times:
        return Figure(value=0.0, unit="us", source="one rank sends nothing")
    smallest = min(times)
    return Figure(
        value=times[smallest] / US,
        unit="us",
        source=f"{SOURCE}: messages of {smallest} bytes",
    )
