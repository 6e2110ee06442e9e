"""The numbers behind the charts of an estimate, as binary columns in JSON.

A column is `{"type": "float32", "base64": …}`, little-endian; the page's script reads
it as it stands. What is drawn of it follows the zoom.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import numpy as np

from costmodel.schedule import COMPUTE
from costmodel.simulation import BREAKDOWN, Estimate
from costmodel.timeline import Timeline, spans
from costmodel.trace import memory_levels
from profiles.arrays import Array
from profiles.units import GiB

MOST_ACTIONS: Final = 150_000  # in one file; of more, neighbours of a rank are joined
MOST_POINTS: Final = 1500  # of one rank's memory over time
_TOGETHER: Final = 8  # of more points; fewer at once would look like a pattern
MOST_LINES: Final = 64
KINDS: Final = {  # of a pass, by its short name
    "F": "forward",
    "B": "backward",
    "I": "backward of inputs",
    "W": "backward of weights",
    "OVERLAP_F_B": "backward beside a forward",
    "REDUCE": "gradient reduction after the last backward",
    "STEP": "optimizer step",
    "GATHER": "parameter gather",
}
_AFTER: Final = ("REDUCE", "STEP", "GATHER")
_NAMES: Final = list(KINDS)
_PER_TRANSFER: Final = 8  # actions; of more, transfers are left out


def encoded(values: Any, kind: str = "float32") -> dict[str, str]:
    """A column of numbers.

    >>> encoded([1, 2], "uint8")
    {'type': 'uint8', 'base64': 'AQI='}
    """
    column = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
    return {"type": kind, "base64": b64encode(column.tobytes()).decode()}


def estimate_series(
    estimate: Estimate, most_actions: int = MOST_ACTIONS
) -> dict[str, Any]:
    """What the charts of an estimate draw, by chart."""
    return {
        "timeline": timeline_series(estimate.timeline, most_actions),
        "memory": memory_series(estimate),
        "breakdown": {
            "names": list(BREAKDOWN),
            "seconds": [estimate.breakdown_s[name] for name in BREAKDOWN],
        },
    }


def timeline_series(timeline: Timeline, most_actions: int) -> dict[str, Any]:
    """Every action, rank by rank: when it starts, how long it takes, what it is.

    `offsets` is where each rank's actions begin. Where there are more than
    *most_actions*, each entry is `joined` neighbours of a rank, with the waits between
    them, by the kind that takes most of it.
    """
    joined = max(-(-timeline.program.rows.size // most_actions), 1)
    ranks = [_rank(timeline, rank, joined) for rank in range(len(timeline.start_s))]
    start, seconds, kind, stage, micro_batch = (
        np.concatenate(columns) for columns in zip(*ranks, strict=True)
    )
    counts = [0, *(len(columns[0]) for columns in ranks)]
    present = [name for number, name in enumerate(_NAMES) if np.any(kind == number)]
    return {
        "makespan_s": timeline.makespan_s,
        "joined": joined,
        "kinds": {name: KINDS[name] for name in _NAMES},
        "present": present,
        "offsets": np.cumsum(counts).tolist(),
        "start_s": encoded(start),
        "seconds": encoded(seconds),
        "kind": encoded(kind, "uint8"),
        "stage": encoded(stage, "uint16"),
        "micro_batch": encoded(micro_batch, "uint32"),
        "transfers": _transfers(timeline, most_actions // _PER_TRANSFER),
    }


def _transfers(timeline: Timeline, most: int) -> dict[str, Any] | None:
    """What is sent from rank to rank, by its sender; None in pipelines of more than
    *most* passes."""
    if timeline.program.rows.size > most:
        return None
    links = [(one.resource.split(), one) for one in spans(timeline)]
    sent = [
        (int(words[1]), one)
        for words, one in links
        if words[2] == "to" and one.end_s > one.start_s
    ]
    return {
        "rank": encoded([rank for rank, _ in sent], "uint16"),
        "start_s": encoded([one.start_s for _, one in sent]),
        "seconds": encoded([one.end_s - one.start_s for _, one in sent]),
        "labels": [f"{one.resource}: {one.label}" for _, one in sent],
    }


def _rank(timeline: Timeline, rank: int, joined: int) -> tuple[Array, ...]:
    """Start, seconds, kind, stage and micro-batch of what *rank* does, in order."""
    program = timeline.program
    shape, taken = program.shape, np.flatnonzero(program.rows[rank] >= 0)
    kind, slot = np.divmod(program.rows[rank, taken], shape.slots)
    of = np.array([_NAMES.index(one.value) for one in COMPUTE])[kind]
    micro_batch = program.codes[rank, taken] % shape.micro_batches
    start, end = timeline.start_s[rank, taken], timeline.end_s[rank, taken]
    columns = [start, end - start, of, slot % shape.stages, micro_batch]
    if joined > 1:
        columns = _joined(columns, joined)
    tail = [
        (timeline.compute_end_s[rank], timeline.reduce_end_s[rank]),
        (
            timeline.step_start_s[rank],
            timeline.step_start_s[rank] + timeline.costs.step_s[rank],
        ),
        (
            timeline.step_start_s[rank] + timeline.costs.step_s[rank],
            timeline.rank_end_s[rank],
        ),
    ]
    after = [
        (begin, end - begin, _NAMES.index(name), 0, 0)
        for name, (begin, end) in zip(_AFTER, tail, strict=True)
        if end > begin
    ]
    if not after:
        return tuple(columns)
    pairs = zip(columns, zip(*after, strict=True), strict=True)
    return tuple(np.concatenate([own, more]) for own, more in pairs)


def _joined(columns: list[Array], joined: int) -> list[Array]:
    """Each *joined* neighbours as one, of the kind that takes most of their time."""
    start, seconds, kind, stage, micro_batch = columns
    first = np.arange(0, len(start), joined)
    last = np.minimum(first + joined, len(start)) - 1
    times = [
        np.add.reduceat(np.where(kind == one, seconds, 0.0), first)
        for one in range(len(_NAMES))
    ]
    whole = start[last] + seconds[last] - start[first]
    most = np.argmax(times, axis=0)
    return [start[first], whole, most, stage[first], micro_batch[first]]


def memory_series(estimate: Estimate) -> dict[str, Any]:
    """Bytes over time of each pipeline rank (of many, of some, evenly), GiB.

    What lies there all along is that of the peak; activations and working sets follow
    the schedule, scaled so that the highest point is the estimated peak.
    """
    timeline = estimate.timeline
    pp = len(timeline.start_s)
    shown = np.unique(np.linspace(0, pp - 1, min(pp, MOST_LINES)).round().astype(int))
    lines = []
    for rank in shown.tolist():
        time, level = _thinned(*memory_levels(estimate, rank))
        lines.append(
            {
                "rank": rank,
                "time_s": encoded(time),
                "gib": encoded(level / GiB),
                "peak_gib": float(estimate.memory[rank].total) / GiB,
            }
        )
    return {
        "lines": lines,
        "capacity_gib": min(estimate.capacities_bytes) / GiB,
        "makespan_s": timeline.makespan_s,
    }


def _thinned(time: Array, level: Array) -> tuple[Array, Array]:
    """The same; of many points the most of each of several neighbours."""
    if len(time) <= MOST_POINTS:
        return time, level
    parts = min(MOST_POINTS // 2, len(time) // _TOGETHER)
    first = np.linspace(0, len(time), parts, endpoint=False).astype(int)
    ends = np.append(time[first], time[-1])
    return ends, np.append(np.maximum.reduceat(level, first), level[-1])
