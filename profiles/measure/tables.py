"""Timings of the ranks → sample tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from profiles.measure.noise import spread
from profiles.measure.survey import Result
from profiles.measure.timing import Exchange, Operation, Request, Timing
from profiles.samples import ALONE, CollectiveKey, OperatorKey, Sample

BACKEND = "eager"
MOST_ODD = 30  # one message in so many may be odd


def operator_samples(
    request: Request, results: Sequence[Result], *, device: str, software: str
) -> dict[OperatorKey, Sample]:
    """A sample of every operation: the median over the ranks of each one's median."""
    together = request.local_ranks > 1 and request.device == "cpu"
    crowd = f"ranks={request.local_ranks}" if together else ALONE
    return {
        OperatorKey(
            device=device,
            software=software,
            kind=operation.kind,
            direction=operation.direction,
            shape=operation.shape,
            precision=operation.precision,
            backend=BACKEND,
            co_running=crowd,
        ): _sample(
            [result.operations[place] for result in results], _provenance(operation)
        )
        for place, operation in enumerate(request.operations)
    }


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
