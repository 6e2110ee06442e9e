"""A step's memory as a snapshot of PyTorch's allocator (pytorch.org/memory_viz).

A device for each pipeline rank, whose segment is its peak. What is there all along is
allocated first; each forward takes its saved activations, each pass its working set.
The viewer reads a pickle, as `torch.cuda.memory._dump_snapshot` writes it: here of
dicts, lists, texts and numbers alone. Nothing in this project reads one.

A block of a size takes the place of one of that size that was freed, else a new one.
"""

from __future__ import annotations

import json
import pickle  # written alone, for a viewer; see above
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.schedule import COMPUTE, Action, Kind
from costmodel.simulation import Estimate
from costmodel.trace.memory import resting, scale
from profiles.errors import InvalidSpec
from profiles.files import shown
from profiles.units import US

SUFFIXES: Final = (".pickle", ".pkl", ".json")
_BLOCK: Final = 512  # bytes that sizes are multiples of, as the allocator's are
_FIRST: Final = 0x7F0000000000  # address of the first device's segment
_APART: Final = 1 << 44  # between segments
_STREAM: Final = 0


def snapshot_bytes(path: Path, estimate: Estimate) -> bytes:
    """What *path* is to hold, by its suffix; raises InvalidSpec for any other."""
    if path.suffix not in SUFFIXES:
        raise InvalidSpec(
            f"--memory-snapshot {shown(path)}: the name says what is written; give one "
            "that ends in .pickle (for pytorch.org/memory_viz) or .json"
        )
    snapshot = memory_snapshot(estimate)
    if path.suffix == ".json":
        return json.dumps(snapshot, allow_nan=False).encode()
    return pickle.dumps(snapshot)


def memory_snapshot(estimate: Estimate) -> dict[str, Any]:
    """The step of *estimate*, as `torch.cuda.memory._snapshot` has it."""
    devices = [_device(estimate, rank) for rank in range(estimate.layout.pp)]
    return {
        "segments": [device.segment() for device in devices],
        "device_traces": [device.events for device in devices],
        "allocator_settings": {},
        "external_annotations": [],
    }


@dataclass(kw_only=True)
class _Block:
    address: int
    size: int
    name: str


@dataclass(kw_only=True)
class _Device:
    """The memory of a rank: what was taken and freed, and what is there."""

    rank: int
    base: int
    events: list[dict[str, Any]] = field(default_factory=list)
    alive: dict[object, _Block] = field(default_factory=dict)
    ends: int = 0  # of what was ever taken
    _free: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def take(self, key: object, name: str, size: float, time_s: float) -> None:
        blocks = max(round(size / _BLOCK), 0) * _BLOCK
        if not blocks:
            return
        if self._free[blocks]:
            address = self._free[blocks].pop()
        else:
            address = self.base + self.ends
            self.ends += blocks
        self.alive[key] = _Block(address=address, size=blocks, name=name)
        self._event("alloc", self.alive[key], time_s)

    def free(self, key: object, time_s: float) -> None:
        block = self.alive.pop(key, None)
        if block is None:
            return
        self._free[block.size].append(block.address)
        self._event("free_requested", block, time_s)
        self._event("free_completed", block, time_s)

    def segment(self) -> dict[str, Any]:
        """All that was ever taken, and what of it is there at the end."""
        blocks, at = [], self.base
        there = sorted(self.alive.values(), key=lambda one: one.address)
        for one in there:
            blocks += self._gap(at, one.address)
            blocks.append(
                {
                    "address": one.address,
                    "size": one.size,
                    "requested_size": one.size,
                    "state": "active_allocated",
                    "frames": self._frames(one.name),
                }
            )
            at = one.address + one.size
        blocks += self._gap(at, self.base + self.ends)
        held = sum(one.size for one in there)
        return {
            "device": self.rank,
            "address": self.base,
            "total_size": self.ends,
            "allocated_size": held,
            "active_size": held,
            "requested_size": held,
            "stream": _STREAM,
            "segment_type": "large",
            "segment_pool_id": [0, 0],
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }

    def _gap(self, first: int, last: int) -> list[dict[str, Any]]:
        if first == last:
            return []
        gap = {"address": first, "size": last - first, "requested_size": 0}
        return [{**gap, "state": "inactive", "frames": []}]

    def _event(self, action: str, block: _Block, time_s: float) -> None:
        self.events.append(
            {
                "action": action,
                "addr": block.address,
                "size": block.size,
                "stream": _STREAM,
                "time_us": round(time_s / US),
                "frames": self._frames(block.name),
            }
        )

    def _frames(self, name: str) -> list[dict[str, Any]]:
        return [{"name": name, "filename": f"pipeline rank {self.rank}", "line": 0}]


def _device(estimate: Estimate, rank: int) -> _Device:
    """What the schedule takes and frees on *rank*."""
    timeline = estimate.timeline
    program, device = timeline.program, _Device(rank=rank, base=_FIRST + rank * _APART)
    for name, size in resting(estimate, rank).items():
        device.take(name, name, size, 0.0)
    passes = _Passes(estimate, rank, device)
    for position in np.flatnonzero(program.rows[rank] >= 0).tolist():
        kind, slot = divmod(int(program.rows[rank, position]), program.shape.slots)
        passes.run(
            COMPUTE[kind],
            program.action(rank, position),
            slot % program.shape.stages,
            float(timeline.start_s[rank, position]),
            float(timeline.end_s[rank, position]),
        )
    return device


class _Passes:
    """The passes of a rank, each taking and freeing as `timeline.costs` prices it."""

    def __init__(self, estimate: Estimate, rank: int, device: _Device) -> None:
        self.costs, self.device = estimate.timeline.costs, device
        self.scale = scale(estimate, rank)
        rows = estimate.timeline.program.rows[rank]
        slots = estimate.timeline.program.shape.slots
        self.splits = bool(np.any(rows // slots == COMPUTE.index(Kind.W)))

    def run(
        self, kind: Kind, action: Action, stage: int, start_s: float, end_s: float
    ) -> None:
        saved = float(self.costs.saved_bytes[stage])
        kept = float(self.costs.weight_bytes[stage]) if self.splits else 0.0
        backward = float(self.costs.transient_backward_bytes[stage])
        own = (action.copy, stage, action.micro_batch)
        saving = f"activations of {action.stage}F{action.micro_batch}"
        if kind is Kind.F:
            lasting = min(saved, kept)
            self._take((own, "kept"), f"{saving}, kept for W", lasting, start_s)
            self._take((own, "saved"), saving, saved - lasting, start_s)
            backward = float(self.costs.transient_forward_bytes[stage])
        elif kind is Kind.I:
            more = f"gradients kept for W of {action.stage}F{action.micro_batch}"
            self._take((own, "more"), more, kept - saved, start_s)
        if kind is not Kind.W:
            self._take("working", f"working set of {action}", backward, start_s)
            self.device.free("working", end_s)
        freed = {
            Kind.I: ("saved",),
            Kind.W: ("kept", "more"),
            Kind.B: ("saved", "kept"),
            Kind.OVERLAP_F_B: ("saved", "kept"),
        }
        for name in freed.get(kind, ()):
            self.device.free((own, name), end_s)

    def _take(self, key: object, name: str, size: float, time_s: float) -> None:
        self.device.take(key, name, size * self.scale, time_s)
