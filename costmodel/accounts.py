"""A priced layout's accounts: its costs on a timeline, its seconds and its bytes.

stages  → what each pass, transfer and step costs      → costs
the run → where the seconds of the last rank go        → breakdown
        → what each pipeline rank holds at its peak    → peak
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.action import Kind
from costmodel.data_parallel import buckets_of
from costmodel.layout import Layout, Stage
from costmodel.machine import Machine
from costmodel.memory import pipeline_buffers
from costmodel.mesh_parallel import degrees_of
from costmodel.peaks import Peak
from costmodel.schedule import COMPUTE
from costmodel.stage import StagePrice
from costmodel.stage_costs import StageCosts
from costmodel.tied import layout_tied_sync
from costmodel.timeline import Timeline
from costmodel.transfers import Sends, sends, transfers
from profiles.job import Job

Array = NDArray[Any]
BREAKDOWN = (
    "compute",
    "recompute",
    "tensor_comm",
    "context_comm",
    "expert_comm",
    "pipeline_comm",
    "data_comm",
    "bubble",
    "optimizer",
    "offload",
)


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """A layout whose virtual *stages* are priced: arrays in model order."""

    job: Job
    layout: Layout
    stages: StagePrice
    on: Machine

    def costs(self) -> StageCosts:
        """The input of the timeline."""
        layout, forward, backward = self.layout, *self._sends
        return StageCosts(
            forward_s=self.stages.forward_s + forward.in_passes_s,
            backward_s=self.stages.backward_s + backward.in_passes_s,
            send_forward_s=forward.beside_s,
            send_backward_s=backward.beside_s,
            saved_bytes=self.stages.saved_bytes,
            transient_forward_bytes=self.stages.forward_working_bytes,
            transient_backward_bytes=self.stages.backward_working_bytes,
            reduce_s=self.stages.reduce_s,
            step_s=self._by_rank(self.stages.step_s),
            gather_s=self._by_rank(self.stages.gather_s)
            + self._tied_s
            + self.on.step_s,
            static_bytes=np.zeros(layout.pp),  # states are added by kind, in `memory`
            buckets=self._buckets,
            overlap_reduce="grad" in self.on.software.overlap,
        )

    def breakdown(self, timeline: Timeline) -> dict[str, float]:
        """Where the step of the rank that ends last (the lowest of several) goes."""
        rank = int(np.argmax(timeline.rank_end_s))
        account = timeline.account(rank)
        m = self.layout.micro_batches

        here = self._holders == rank

        def passes(name: str) -> float:
            return m * float(getattr(self.stages, name)[here].sum())

        sent = m * sum(float(way.in_passes_s[here].sum()) for way in self._sends)
        parts = {
            "tensor_comm": passes("tensor_comm_s"),
            "context_comm": passes("context_comm_s"),
            "expert_comm": passes("expert_comm_s"),
            "recompute": passes("recompute_s") - passes("recompute_comm_s"),
        }
        exposed, copied = passes("data_comm_s"), passes("offload_s")
        copies_s = float(self.stages.step_copies_s[here].sum())
        found = {
            **parts,
            "compute": account.compute_s
            - sum(parts.values())
            - exposed
            - copied
            - sent,
            "pipeline_comm": account.pipeline_comm_s + sent,
            "data_comm": exposed + account.reduce_s + account.gather_s,
            "bubble": account.bubble_s + account.others_s + account.idle_s,
            "optimizer": account.step_s - copies_s,
            "offload": copied + copies_s,
        }
        return {name: found.get(name, 0.0) for name in BREAKDOWN}

    def peak(self, timeline: Timeline) -> Peak:
        """What each pipeline rank holds at the instant of its peak."""
        layout = self.layout
        kind, stage = np.divmod(timeline.peak_rows(), len(layout.stages))
        working = np.where(
            kind == COMPUTE.index(Kind.F),
            self.stages.forward_working_bytes[stage],
            self.stages.backward_working_bytes[stage],
        )
        gathered = np.zeros(layout.pp)
        np.maximum.at(gathered, self._holders, self.stages.gathered_bytes)
        return Peak(
            on=self.on,
            precision=layout.precision,
            moments=self.job.moments,
            offload=layout.offload,
            degrees=self._degrees,
            gpus=layout.gpus,
            micro_batches=layout.micro_batches,
            parameters=self._by_rank(self.stages.parameters),
            expert_parameters=self._by_rank(self.stages.expert_parameters),
            frozen_parameters=self._by_rank(self.stages.frozen_parameters),
            gathered_bytes=gathered,
            activation_bytes=(timeline.in_flight_at_peak() @ self.stages.saved_bytes)
            * pipeline_buffers(self.on, layout.pp),
            transient_bytes=working,
        )

    @property
    def _buckets(self) -> Array | int:
        """Of each stage where they differ in mesh, else those of the first."""
        sizes = self.stages.trained_parameters
        sizes = sizes if len(self._meshes) > 1 else sizes[0]
        found = buckets_of(sizes, self.layout.precision, self.on)
        return found.astype(np.int64) if np.ndim(found) else int(found)

    @property
    def _degrees(self) -> list[tuple[int, ...]]:
        """Of each pipeline rank."""
        pp = self.layout.pp
        rows = list(self._meshes) * pp
        if len(self._meshes) > 1:
            place = np.unique(self._holders, return_index=True)[1]
            rows = [_row(self.layout.stages[number]) for number in place]
        return [(*row, pp) for row in rows]

    @cached_property
    def _meshes(self) -> dict[tuple[int, ...], None]:
        return dict.fromkeys(map(_row, self.layout.stages))

    @cached_property
    def _holders(self) -> Array:
        """The pipeline rank that holds each stage."""
        return np.array([stage.held_by[0] for stage in self.layout.stages])

    @cached_property
    def _sends(self) -> tuple[Sends, Sends]:
        """By virtual stage: forwards to the next one, backwards to the one before."""
        seconds = transfers(self.layout, self.job, self.on).seconds
        onward, back = np.append(seconds, 0.0), np.append(0.0, seconds)
        return sends(onward, self.on), sends(back, self.on)

    @property
    def _tied_s(self) -> Array:
        """By rank, the sum of the tied gradient over the pipeline's two ends."""
        ends = np.zeros(self.layout.pp)
        ends[[0, -1]] = layout_tied_sync(self.layout, self.job, self.on).seconds
        return ends

    def _by_rank(self, values: Array) -> Array:
        return np.bincount(self._holders, weights=values, minlength=self.layout.pp)


def _row(stage: Stage) -> tuple[int, ...]:
    """What data parallelism hangs on: tp, cp, dp, ep, etp, ZeRO level and group."""
    *degrees, group = degrees_of(stage.mesh)
    return (*degrees, stage.plans[0].zero, group)
