"""What the ranks timed → sample tables, and the measured machine as a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from profiles.hardware import Cluster, Device, Figure, Island, Level, catalog
from profiles.measure.drives import UNMEASURED, DriveRates, with_drives
from profiles.measure.machine import spread
from profiles.measure.survey import Result
from profiles.measure.timing import (
    FORWARD,
    PRODUCTS,
    Exchange,
    Operation,
    Request,
    Timing,
    flops,
)
from profiles.samples import ALONE, LOCAL, CollectiveKey, OperatorKey, Sample
from profiles.units import GB, GFLOPS, US, GiB

BACKEND = "eager"
MOST_ODD = 30  # one message in so many may be odd
SOURCE = "measured by the command profile"
_NOTHING = Figure(value=0.0, unit="GiB", source="a process on a CPU has no context")


def operator_samples(
    request: Request, results: Sequence[Result], *, device: str, software: str
) -> dict[OperatorKey, Sample]:
    """A sample of every operation that all ranks had room for: the median over the
    ranks of each one's median."""
    together = request.local_ranks > 1 and request.device == "cpu"
    crowd = f"ranks={request.local_ranks}" if together else ALONE
    found = {}
    for place, operation in enumerate(request.operations):
        timings = [timing for one in results if (timing := one.operations[place])]
        if len(timings) < len(results):
            continue
        key = OperatorKey(
            device=device,
            software=software,
            kind=operation.kind,
            direction=operation.direction,
            shape=operation.shape,
            precision=operation.precision,
            backend=BACKEND,
            co_running=crowd,
        )
        found[key] = _sample(timings, _provenance(operation))
    return found


def collective_samples(
    request: Request, results: Sequence[Result], *, fabric: str, network: str
) -> dict[CollectiveKey, Sample]:
    """A sample of every exchange, over the ranks that took part; none of those that
    would have taken too long. *fabric* is a node's, *network* what joins nodes.
    """
    found = {}
    for place, exchange in enumerate(request.exchanges):
        timings = [timing for one in results if (timing := one.exchanges[place])]
        if timings:
            key = _key(exchange, fabric if exchange.nodes == 1 else network)
            found[key] = _sample(timings, "measured", trimmed_mean)
    return found


def _key(exchange: Exchange, fabric: str) -> CollectiveKey:
    ranks, nodes = exchange.ranks, exchange.nodes
    return CollectiveKey(
        fabric=fabric,
        collective=exchange.collective + exchange.how,
        ranks=(ranks,) if nodes == 1 else (ranks // nodes, nodes),
        groups_at_once=exchange.groups,
        size_bytes=exchange.size_bytes,
    )


def _provenance(operation: Operation) -> str:
    return f"measured, {operation.variant}" if operation.variant else "measured"


def trimmed_mean(seconds: Sequence[float]) -> float:
    """The mean without one in thirty at either end.

    Messages that wait for a late rank are so many and so long that the median is far
    below what hundreds of them add up to in a step; one rare pause of the machine is
    not to count.

    >>> trimmed_mean([1.0] * 14 + [2.0] * 15 + [100.0])
    1.5357142857142858
    """
    few = len(seconds) // MOST_ODD
    return fmean(sorted(seconds)[few : len(seconds) - few])


def _sample(
    timings: Sequence[Timing],
    provenance: str,
    middle: Callable[[Sequence[float]], float] = median,
) -> Sample:
    return Sample(
        seconds=median(middle(one.seconds) for one in timings),
        spread=median(spread(one.seconds) for one in timings),
        repeats=min(len(one.seconds) for one in timings),
        provenance=provenance,
        saved_bytes=timings[0].saved_bytes,
    )


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


def _figure(value: float, unit: str, what: str = "") -> Figure:
    return Figure(
        value=value, unit=unit, source=f"{SOURCE}: {what}" if what else SOURCE
    )


def _level(
    name: str,
    kind: str,
    pair: tuple[int, ...],
    collectives: Mapping[CollectiveKey, Sample],
    copy_bytes_per_s: float,
) -> Level:
    """The outermost level, until a further one is around it. Its bandwidth is that of
    messages from one rank to another, less their latency."""
    times = {
        key.size_bytes: sample.seconds
        for key, sample in collectives.items()
        if (key.collective, key.ranks, key.groups_at_once) == ("send", pair, 1)
    }
    bandwidth = Figure(
        value=copy_bytes_per_s / GB, unit="GB/s", source="one rank: a copy's"
    )
    latency = Figure(value=0.0, unit="us", source="one rank sends nothing")
    if times:
        least, most = min(times), max(times)
        latency = _figure(times[least] / US, "us", f"messages of {least} bytes")
        if least < most:
            seconds = max(times[most] - times[least], 1e-9)
            rate = (most - least) / seconds / GB
            bandwidth = _figure(rate, "GB/s", f"messages of {most} bytes")
    return Level(
        name=name, kind=kind, devices=None, bandwidth=bandwidth, latency=latency
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
    on_cpu = request.device == "cpu"
    own = memory_bytes if on_cpu else float(facts["device memory bytes"])
    shared = f"available memory over {request.local_ranks} ranks"
    memory = Figure(value=own / GiB, unit="GiB", source=shared if on_cpu else SOURCE)
    copies = {
        key.shape[0]: sample.seconds
        for key, sample in operators.items()
        if key.kind == "host-copy"
    }
    largest = max(copies)
    return Device(
        name=device,
        architecture="cpu" if on_cpu else facts["architecture"],
        memory=memory,
        usable_memory=memory,
        memory_bandwidth=_figure(copy_bytes_per_s / GB, "GB/s", "a copy"),
        peak=_peaks(operators),
        multiprocessors=int(facts.get("multiprocessors", request.threads)),
        host_link=_figure(
            2 * largest / copies[largest] / GB,
            "GB/s",
            f"{largest} bytes to the host and back",
        ),
        extra={"context": _NOTHING, "communicator": _NOTHING} if on_cpu else {},
        source=SOURCE,
        notes="One rank, with the others at work beside it.",
    )


def _peaks(operators: Mapping[OperatorKey, Sample]) -> dict[str, Figure]:
    """The best rate of a product's forward, by the format that it multiplies in."""
    best: dict[str, float] = {}
    for key, sample in operators.items():
        if key.kind in PRODUCTS and key.direction == FORWARD:
            asked = Operation(kind=key.kind, direction=FORWARD, shape=key.shape)
            rate = flops(asked) / sample.seconds
            best[key.precision] = max(rate, best.get(key.precision, 0.0))
    return {
        name: _figure(rate / GFLOPS, "GFLOP/s", "best product")
        for name, rate in best.items()
    }
