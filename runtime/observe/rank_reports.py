"""What the ranks of a run saw, put together: where the step's time went, and how long
each collective and operator took by itself.

    parts       as `breakdown_s` of an estimate: of the rank that ends last, every
                second of the measured step once; compute by what its thread was busy
                where it has a core of its own, else by the steps that were listened
                to, in which nothing is hidden behind it
    exchanges   of each call the seconds of the rank that came last: the others'
                include their waiting for it
    sends       from the later of SEND and RECV to the end of RECV, on one clock
    operators   ATen's, as those that profiles have samples of:
                addmm, mm               matmul (rows, columns, contracted)
                scaled dot product      attention (batch, heads, kv_heads, seq_len,
                                        head_dim)
                _fused_adamw_ …         the optimizer, over a rank's parameters
                _foreach_norm, _mul_    gradient-norm

A product's backward is two products, that of its input and that of its weight; where
a backward has others beside those of the forward (recomputed ones), none is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final

from costmodel.schedule import RECEIVED, Action, Kind
from costmodel.simulation import BREAKDOWN
from profiles.samples import BACKWARD, FORWARD
from runtime.trace import SEND, Call, Operation, Span

TIED: Final = "tied"  # the group of a table that two stages hold
PASSES: Final = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.OVERLAP_F_B)
SENDS: Final = (Kind.SEND_F, Kind.SEND_B)
RECEIVES: Final = (Kind.RECV_F, Kind.RECV_B)
OF_AXIS: Final = {
    "tp": "tensor_comm",
    "cp": "context_comm",
    "ep": "expert_comm",
    "etp": "expert_comm",
    "pp": "pipeline_comm",
}  # what else is sent is of data parallelism
Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One rank's: the spans of timed steps and of those that were listened to."""

    pipeline: tuple[int, ...]  # the ranks of its pipeline, in their order
    holders: tuple[int, ...]  # the pipeline rank of each virtual stage
    boundary_bytes: int  # of a message between stages
    parameters: int  # that its optimizer updates
    timed: tuple[Spans, ...]
    listened: tuple[Spans, ...]
    calls: tuple[Call, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """A collective of one size over groups of one shape, every call of every group."""

    axis: str
    collective: str
    ranks: tuple[int, ...]  # by level: of a fast domain, and domains
    groups: int  # of a domain, at work at once
    size_bytes: int
    count: int  # calls of one rank in a step
    seconds: tuple[float, ...]


def exchanges(reports: Sequence[Report], local_ranks: int) -> list[Exchanged]:
    """All collectives that were listened to, by axis, kind, group and size."""
    steps = max((len(report.listened) for report in reports), default=0)
    found: dict[tuple[str, str, tuple[int, ...], int], list[float]] = defaultdict(list)
    groups: dict[tuple[str, str, tuple[int, ...], int], set[tuple[int, ...]]] = (
        defaultdict(set)
    )
    for ranks, calls in _by_group(reports).items():
        for together in zip(*calls, strict=True):
            call = together[0]
            shape = levels(ranks, local_ranks)
            key = (call.axis, call.collective, shape, call.size_bytes)
            found[key].append(min(one.seconds for one in together))
            groups[key].add(ranks)
    return [
        Exchanged(
            axis=axis,
            collective=collective,
            ranks=shape,
            groups=max(1, local_ranks // shape[0]),
            size_bytes=size,
            count=len(seconds) // (steps * len(groups[axis, collective, shape, size])),
            seconds=tuple(seconds),
        )
        for (axis, collective, shape, size), seconds in sorted(found.items())
    ]


def sends(reports: Sequence[Report], local_ranks: int) -> Exchanged | None:
    """Messages between stages whose receiver was there first; ranks on one clock."""
    seconds = tuple(
        one
        for rank, report in enumerate(reports)
        for step, spans in enumerate(report.timed)
        for one in _messages(reports, rank, step, spans)
    )
    if not seconds:
        return None
    first = reports[0]
    received = [s for s in first.timed[0] if s.action.kind in (*SENDS, *RECEIVES)]
    return Exchanged(
        axis="pp",
        collective=SEND,
        ranks=levels(first.pipeline[:2], local_ranks),
        groups=max(1, local_ranks // 2),
        size_bytes=first.boundary_bytes,
        count=len(received),
        seconds=seconds,
    )


def parts(
    reports: Sequence[Report],
    step_s: float,
    send_s: float | None,
    *,
    hides: bool,
    own_core: bool = False,
) -> dict[str, float]:
    """Seconds of the measured step by kind; they sum to *step_s*, or to a bit more
    where a step's parts varied.

    *send_s* is what a message between stages takes; None where that is not known, and
    all waiting for one is bubble. Where the device *hides* communication, what a pass
    takes beyond its compute alone is communication; so it is where CPU ranks each have
    their *own_core*, beyond what their threads were busy. Else the passes are split as
    in the steps that were listened to.
    """
    report = max(reports, key=lambda one: _ends_s(one.timed))
    found = dict.fromkeys(BREAKDOWN, 0.0)
    calls = _calls_s(report)
    inside = {axis: s for (kind, axis), s in calls.items() if kind in PASSES}
    passing = _middle(report.timed, PASSES)
    alone = _middle(report.listened, PASSES) - sum(inside.values())
    if hides:
        found["compute"] = min(passing, max(alone, 0.0))
    elif own_core:
        found["compute"] = min(passing, _middle(report.timed, PASSES, busy=True))
    else:
        found["compute"] = passing * alone / (alone + sum(inside.values()) or 1.0)
    # What was sent in a pass, less what was hidden behind its compute.
    exposed = (passing - found["compute"]) / (sum(inside.values()) or 1.0)
    for axis, seconds in inside.items():
        found[OF_AXIS.get(axis, "data_comm")] += exposed * seconds
    found["data_comm"] += _middle(report.timed, (Kind.REDUCE_GRAD,))
    found["pipeline_comm"] += _middle(report.timed, SENDS)
    found["pipeline_comm"] += _transfers_s(report.timed, send_s or 0.0)
    in_step = {axis: s for (kind, axis), s in calls.items() if kind == Kind.STEP}
    stepping = _middle(report.listened or report.timed, (Kind.STEP,))
    found["optimizer"] = max(stepping - sum(in_step.values()), 0.0)
    found["data_comm"] += in_step.get(TIED, 0.0)
    found["bubble"] = max(step_s - sum(found.values()), 0.0)
    return found


def levels(ranks: Sequence[int], local_ranks: int) -> tuple[int, ...]:
    """Ranks of a group by level, innermost first.

    >>> levels((0, 1), 2), levels((0, 2, 4), 2), levels((0, 1, 4, 5), 4)
    ((2,), (1, 3), (2, 2))
    """
    nodes = len({rank // local_ranks for rank in ranks})
    return (len(ranks),) if nodes == 1 else (len(ranks) // nodes, nodes)


def _by_group(reports: Sequence[Report]) -> dict[tuple[int, ...], list[list[Call]]]:
    """The calls of each member of each group, in the order in which all made them."""
    found: dict[tuple[int, ...], list[list[Call]]] = defaultdict(list)
    for report in reports:
        own: dict[tuple[int, ...], list[Call]] = defaultdict(list)
        for call in report.calls:
            own[call.ranks].append(call)
        for ranks, calls in own.items():
            found[ranks].append(calls)
    return {
        ranks: calls
        for ranks, calls in found.items()
        if len(calls) == len(ranks) and len({len(one) for one in calls}) == 1
    }


def _messages(
    reports: Sequence[Report], rank: int, step: int, spans: Spans
) -> Iterator[float]:
    """Seconds of the messages that *rank* received in a step while it waited."""
    report = reports[rank]
    for span in spans:
        if span.action.kind not in RECEIVES or span.action.copy:
            continue
        sent, holder = _sent(span.action, report.holders)
        sender = reports[report.pipeline[holder]]
        other = {one.action: one for one in sender.timed[step]}.get(sent)
        if other is not None and span.began_s < other.began_s < span.ended_s:
            yield span.ended_s - other.began_s


def _sent(received: Action, holders: Sequence[int]) -> tuple[Action, int]:
    """The SEND of what a RECV receives, and the pipeline rank that carries it out."""
    kind, back = next(
        (sent, -step) for sent, (got, step) in RECEIVED.items() if got is received.kind
    )
    stage = received.stage + back
    return replace(received, kind=kind, stage=stage), holders[stage]


def _calls_s(report: Report) -> Mapping[tuple[str, str], float]:
    """Seconds a step of its own collectives, waiting and all, by (action, axis)."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for call in report.calls:
        found[call.action, call.axis] += call.seconds / max(len(report.listened), 1)
    return found


def _middle(
    steps: Iterable[Spans], kinds: Sequence[Kind], *, busy: bool = False
) -> float:
    """Seconds a step in actions of *kinds*, or *busy* in them: the median step's."""
    totals = [
        sum(
            span.busy_s if busy else span.seconds
            for span in spans
            if span.action.kind in kinds
        )
        for spans in steps
    ]
    return median(totals) if totals else 0.0


def _transfers_s(steps: Sequence[Spans], send_s: float) -> float:
    """Of each wait for a message, as much as the message itself takes."""
    return fmean(
        sum(min(span.seconds, send_s) for span in spans if span.action.kind in RECEIVES)
        for spans in steps
    )


def _ends_s(steps: Sequence[Spans]) -> float:
    """How long after its first action a rank's last one ends."""
    return median(spans[-1].ended_s - spans[0].began_s for spans in steps)


PRECISIONS: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
ATTENTION: Final = "_scaled_dot_product_flash_attention_for_cpu"
OPTIMIZERS: Final = {
    "adamw": "_fused_adamw_",
    "adam": "_fused_adam_",
    "sgd": "_fused_sgd_",
    "sgd-momentum": "_fused_sgd_",
}
NORMS: Final = ("_foreach_norm", "_foreach_mul_")
PRODUCTS: Final = ("addmm", "mm")
MEASURED_OPERATORS: Final = {
    *PRODUCTS,
    *NORMS,
    *OPTIMIZERS.values(),
    ATTENTION,
    f"{ATTENTION}_backward",
}
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The operator part of a sample key."""

    kind: str
    direction: str
    shape: Shape
    precision: str


Found = Mapping[Measured, Sequence[float]]


def operators(report: Report, optimizer: str) -> Found:
    """Seconds of each operator that one rank was heard to do, call by call."""
    found: dict[Measured, list[float]] = defaultdict(list)
    for heard, seconds in (
        *_attention(report.operations),
        *_products(report.operations),
        *_steps(report, optimizer),
    ):
        found[heard].append(seconds)
    return found


def _attention(operations: Sequence[Operation]) -> Iterator[tuple[Measured, float]]:
    for one in operations:
        if not one.name.startswith(ATTENTION) or one.dtype not in PRECISIONS:
            continue
        backward = one.name.endswith("_backward")
        query, key = one.shapes[1:3] if backward else one.shapes[:2]
        batch, heads, length, width = query
        yield (
            Measured(
                "attention",
                BACKWARD if backward else FORWARD,
                (batch, heads, key[1], length, width),
                PRECISIONS[one.dtype],
            ),
            one.seconds,
        )


def _products(operations: Sequence[Operation]) -> Iterator[tuple[Measured, float]]:
    """Products forwards; and backwards, the two halves of each in turn."""
    products = [
        (one, _product(one.shapes))
        for one in operations
        if one.name in PRODUCTS and one.dtype in PRECISIONS
    ]
    onward = [(one, shape) for one, shape in products if one.action == Kind.F]
    back = [(one, shape) for one, shape in products if one.action == Kind.B]
    for one, shape in onward:
        yield (Measured("matmul", FORWARD, shape, PRECISIONS[one.dtype]), one.seconds)
    if len(back) != 2 * len(onward):
        return
    halves: dict[tuple[Shape, str], list[float]] = defaultdict(list)
    for one, shape in back:
        halves[shape, one.dtype].append(one.seconds)
    for (rows, columns, contracted), dtype in {
        (shape, one.dtype): None for one, shape in onward
    }:
        of_input = halves.get(((rows, contracted, columns), dtype), [])
        of_weight = next(
            (
                halves[shape, dtype]
                for shape in ((columns, contracted, rows), (contracted, columns, rows))
                if (shape, dtype) in halves
            ),
            [],
        )
        key = Measured(
            "matmul", BACKWARD, (rows, columns, contracted), PRECISIONS[dtype]
        )
        for input_s, weight_s in zip(of_input, of_weight, strict=False):
            yield key, input_s + weight_s


def _steps(report: Report, optimizer: str) -> Iterator[tuple[Measured, float]]:
    """What a step does once, over all parameters of the rank: each step's sum."""
    shape = (report.parameters,)
    steps = len(report.listened)
    stepping = [one for one in report.operations if one.action == Kind.STEP]
    for kind, names in (
        (optimizer, (OPTIMIZERS[optimizer],)),
        ("gradient-norm", NORMS),
    ):
        calls = [one for one in stepping if one.name in names]
        each, rest = divmod(len(calls), steps or 1)
        if rest or {one.name for one in calls} != set(names):
            continue  # not in every step, as when nothing was clipped
        for step in range(steps):
            own = calls[step * each : (step + 1) * each]
            yield (
                Measured(kind, FORWARD, shape, "fp32"),
                sum(one.seconds for one in own),
            )


def _product(shapes: Sequence[Shape]) -> Shape:
    """(rows, columns, contracted) of mm(one, other) or addmm(bias, one, other)."""
    (rows, contracted), (_, columns) = shapes[-2:]
    return rows, columns, contracted
