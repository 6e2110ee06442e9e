"""`Trace`: what processes did on their streams; written and read as Chrome's trace
events, which Perfetto (ui.perfetto.dev) shows.

    process    a pipeline rank of a priced step, a rank of a measured one
    thread     a stream; `ACTIONS`: the actions of the schedule as wholes, by their
               names, whichever streams they use
    slice      what a stream did, and when; its category is a part of `breakdown_s`
    counter    bytes over time

The priced and the measured trace of a layout have one form, and `question` says of
which layout they are. Times are written in whole nanoseconds, so that slices that
follow each other never overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from costmodel.layout import Layout
from costmodel.simulation import fingerprint
from profiles.errors import InvalidFile
from profiles.files import read_json, shown
from profiles.models import Job
from profiles.units import GiB

FORMAT: Final = "meshwright/trace"
VERSION: Final = 1
ACTIONS: Final = "actions"
MEASURED_FILE: Final = "actions.json"  # in the folder of `execute --trace`
_MOST_BYTES: Final = 512 * 2**20
_WHAT: Final = "a trace of `execute --trace`"
_NS: Final = 1e9
_NS_OF_US: Final = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a stream of a process did; `step` counts those of a trace, from 0."""

    process: int
    thread: str
    name: str
    category: str
    start_s: float
    end_s: float
    step: int = 0

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Bytes of a process at a time, by what they are."""

    process: int
    name: str
    time_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Slices and counters of *processes*, which are named; *about* says of what."""

    processes: Mapping[int, str]
    about: Mapping[str, Any]
    slices: Sequence[Slice]
    counters: Sequence[Counter] = ()
    threads: Sequence[str] = (ACTIONS,)  # those that come first, in order


def about(job: Job, layout: Layout, source: str) -> dict[str, Any]:
    """What a trace says of itself: the layout that it is of, and whence it comes."""
    question = {"job": fingerprint(job), "layout": layout.to_dict()}
    whole = json.dumps(question, sort_keys=True, default=str).encode()
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": source,
        "model": job.model,
        "gpus": layout.gpus,
        "summary": {key: str(value) for key, value in layout.summary.items()},
        "question": sha256(whole).hexdigest(),
    }


def trace_text(trace: Trace) -> str:
    """The trace as JSON, one event a line."""
    lines = ",\n".join(
        (
            *(_compact(event) for event in _metadata(trace)),
            *_slices(trace),
            *(_compact(event) for event in _counters(trace)),
        )
    )
    said = json.dumps(dict(trace.about), allow_nan=False)
    return (
        f'{{"displayTimeUnit":"ms","otherData":{said},"traceEvents":[\n{lines}\n]}}\n'
    )


def _compact(event: Mapping[str, Any]) -> str:
    return json.dumps(event, allow_nan=False, separators=(",", ":"))


def _metadata(trace: Trace) -> Iterator[dict[str, Any]]:
    """The names of processes and threads, and the order in which they stand."""

    def said(process: int, kind: str, **more: Any) -> dict[str, Any]:
        return {"name": kind, "ph": "M", "pid": process, **more}

    for place, (process, name) in enumerate(trace.processes.items()):
        yield said(process, "process_name", args={"name": name})
        yield said(process, "process_sort_index", args={"sort_index": place})
    for number, (process, thread) in enumerate(_threads(trace), 1):
        yield said(process, "thread_name", tid=number, args={"name": thread})
        order = {"sort_index": number}
        yield said(process, "thread_sort_index", tid=number, args=order)


def _slices(trace: Trace) -> Iterator[str]:
    """Complete events; a hundred thousand of them take a second."""
    numbers = {key: number for number, key in enumerate(_threads(trace), 1)}
    for one in trace.slices:
        start, end = _ns(one.start_s), _ns(one.end_s)
        ts, dur = start / _NS_OF_US, (end - start) / _NS_OF_US
        step = f',"args":{{"step":{one.step}}}' if one.step else ""
        yield (
            f'{{"name":{json.dumps(one.name)},"cat":{json.dumps(one.category)},'
            f'"ph":"X","pid":{one.process},'
            f'"tid":{numbers[one.process, one.thread]},'
            f'"ts":{ts:.3f},"dur":{dur:.3f}{step}}}'
        )


def _counters(trace: Trace) -> Iterator[dict[str, Any]]:
    for count in trace.counters:
        yield {
            "name": count.name,
            "ph": "C",
            "pid": count.process,
            "ts": _ns(count.time_s) / _NS_OF_US,
            "args": {name: value / GiB for name, value in count.values.items()},
        }


def _threads(trace: Trace) -> list[tuple[int, str]]:
    """The streams that anything happens on, process by process, in their order."""
    used = dict.fromkeys((one.process, one.thread) for one in trace.slices)
    first = {name: place for place, name in enumerate(trace.threads)}
    place = {process: number for number, process in enumerate(trace.processes)}
    return sorted(used, key=lambda key: (place[key[0]], first.get(key[1], len(first))))


def _ns(seconds: float) -> int:
    return round(seconds * _NS)


def read_trace(path: Path) -> Trace:
    """The slices of a trace that `trace_text` wrote, or of the one in the folder
    *path*; raises InvalidFile for any other file."""
    file = path / MEASURED_FILE if path.is_dir() else path
    document = read_json(file, what=_WHAT, most_bytes=_MOST_BYTES)
    said = document.get("otherData") if isinstance(document, dict) else None
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise InvalidFile(
            f"{shown(file)} is not {_WHAT}: give the folder that it wrote, or its "
            f"{MEASURED_FILE}"
        )
    if said.get("version") != VERSION:
        raise InvalidFile(
            f"{shown(file)} is a trace of version {said.get('version')!r}; this "
            f"program reads version {VERSION}"
        )
    try:
        assert isinstance(document, dict)
        return _trace(said, document["traceEvents"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFile(
            f"{shown(file)} is a damaged trace ({type(error).__name__}: {error}); "
            "trace the run again"
        ) from None


def _trace(said: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Trace:
    """Raises KeyError, TypeError, ValueError or AttributeError for what is none."""
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    slices = []
    for event in events:
        kind, process = event["ph"], _number(event["pid"])
        if kind == "M" and event["name"] == "process_name":
            processes[process] = str(event["args"]["name"])
        elif kind == "M" and event["name"] == "thread_name":
            threads[process, _number(event["tid"])] = str(event["args"]["name"])
        elif kind == "X":
            start_s = float(event["ts"]) * _NS_OF_US / _NS
            seconds = float(event["dur"]) * _NS_OF_US / _NS
            if not 0 <= start_s < float("inf") or not 0 <= seconds < float("inf"):
                raise ValueError(f"{event['name']!r} takes {seconds!r} s")
            slices.append(
                Slice(
                    process=process,
                    thread=threads[process, _number(event["tid"])],
                    name=str(event["name"]),
                    category=str(event["cat"]),
                    start_s=start_s,
                    end_s=start_s + seconds,
                    step=_number(event.get("args", {}).get("step", 0)),
                )
            )
    missing = {one.process for one in slices} - processes.keys()
    if missing:
        raise ValueError(f"process {missing.pop()} has no name")
    if not isinstance(said.get("question"), str) or not slices:
        raise ValueError("it has no actions, or does not say of which layout")
    return Trace(processes=processes, about=said, slices=slices)


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
