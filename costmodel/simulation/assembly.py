"""A priced layout's accounts: its costs on a timeline, its seconds and its bytes.

stages  → what each pass, transfer and step costs      → costs
the run → where the seconds of the last rank go        → breakdown
        → what each pipeline rank holds at its peak    → peak
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodel.layout import Layout, Stage
from costmodel.machine import Machine, hides_gradients
from costmodel.stages import (
    DataParallel,
    Peak,
    Sends,
    StagePrice,
    devices_by_rank,
    layout_tied_sync,
    parallel_of,
    pipeline_buffers,
    sends,
    transfers,
)
from costmodel.timeline import StageCosts, Timeline, transient_of
from profiles.arrays import Array
from profiles.models import Job

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
        forward, backward = self._sends
        return StageCosts(
            forward_s=self.stages.forward_s + forward.in_passes_s,
            backward_s=self.stages.backward_s + backward.in_passes_s,
            send_forward_s=forward.beside_s,
            send_backward_s=backward.beside_s,
            saved_bytes=self.stages.saved_bytes,
            weight_s=self.stages.weight_s,
            weight_bytes=self.stages.weight_bytes,
            hidden_s=self._hidden_s,
            transient_forward_bytes=self.stages.forward_working_bytes,
            transient_backward_bytes=self.stages.backward_working_bytes,
            reduce_s=self.stages.reduce_s,
            step_s=self._by_rank(self.stages.step_s),
            gather_s=self._by_rank(self.stages.gather_s)
            + self._tied_s
            + self.on.step_s,
            buckets=self.stages.buckets.astype(np.int64),
            overlap_reduce=self._hides_gradients,
            turns=self.on.turns,
            messages=self._messages,
        )

    def breakdown(self, timeline: Timeline) -> dict[str, float]:
        """Where the step of the rank that ends last (the lowest of several) goes."""
        rank = int(np.argmax(timeline.rank_end_s))
        account = timeline.account(rank)
        here = (self._holders == rank).sum(axis=0)  # how often it holds each stage
        each = self.layout.micro_batches / len(self._holders) * timeline.pace(rank)

        def passes(name: str) -> float:
            return each * float(getattr(self.stages, name) @ here)

        sent = each * sum(float(way.in_passes_s @ here) for way in self._sends)
        parts = {
            "tensor_comm": passes("tensor_comm_s"),
            "context_comm": passes("context_comm_s"),
            "expert_comm": passes("expert_comm_s")
            - timeline.pace(rank) * timeline.hidden_s(rank),
            "recompute": passes("recompute_s") - passes("recompute_comm_s"),
        }
        exposed, copied = passes("data_comm_s"), passes("offload_s")
        copies_s = float(self.stages.step_copies_s @ here)
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
        working = transient_of(
            self.stages.forward_working_bytes,
            self.stages.backward_working_bytes,
            len(self._holders),
        )[timeline.peak_rows()]
        gathered = np.zeros(layout.pp)
        for holders in self._holders:
            np.maximum.at(gathered, holders, self.stages.gathered_bytes)
        return Peak(
            on=self.on,
            devices=devices_by_rank(layout, self.on),
            precision=layout.precision,
            moments=self.job.moments,
            offload=layout.offload,
            parallel=self._parallel,
            gpus=layout.gpus,
            micro_batches=layout.micro_batches,
            parameters=self._by_rank(self.stages.parameters),
            expert_parameters=self._by_rank(self.stages.expert_parameters),
            frozen_parameters=self._by_rank(self.stages.frozen_parameters),
            gathered_bytes=gathered,
            activation_bytes=timeline.held_at_peak()
            * pipeline_buffers(self.on, layout.pp),
            transient_bytes=working,
            away_bytes=self._away_bytes(timeline),
        )

    def _away_bytes(self, timeline: Timeline) -> Array:
        away = self.stages.away_bytes
        if not away.any():
            return np.zeros(self.layout.pp)
        return timeline.most_between(away)

    @property
    def _hides_gradients(self) -> bool:
        tp = [stage.mesh.tp for stage in self.layout.stages]
        return bool(np.all(hides_gradients(self.on.framework, tp)))

    @property
    def _parallel(self) -> list[DataParallel]:
        """Of each pipeline rank, as numbers."""
        if len(self._meshes) == 1:
            return list(self._meshes) * self.layout.pp
        place = np.unique(self._holders[0], return_index=True)[1]
        return [self._side(self.layout.stages[number]) for number in place]

    @cached_property
    def _meshes(self) -> dict[DataParallel, None]:
        return dict.fromkeys(map(self._side, self.layout.stages))

    def _side(self, stage: Stage) -> DataParallel:
        return parallel_of(stage, self.layout.pp, self.layout.zero_plus)

    @cached_property
    def _holders(self) -> Array:
        """The pipeline rank that holds each stage, [copies, stages]."""
        return np.array([stage.held_by for stage in self.layout.stages]).T

    @cached_property
    def _hidden_s(self) -> Array:
        """What a backward saves that runs at once with a forward of its rank's other
        chunk: the exchange of each one's experts lies behind the other's compute."""
        sent = self.stages.expert_comm_s
        other = sent[::-1]  # in a V; no other schedule runs two passes at once
        passes_s = self.stages.forward_s[::-1] + self.stages.backward_s
        hidden: Array = np.minimum(sent, other)
        hidden = np.minimum(hidden, np.maximum(passes_s - hidden, 0))
        hidden = np.minimum(hidden, self.stages.backward_s)
        return (1 - self.on.framework.overlap.contention) * hidden

    @cached_property
    def _sends(self) -> tuple[Sends, Sends]:
        """By virtual stage: forwards to the next one, backwards to the one before."""
        seconds = transfers(self.layout, self.job, self.on).seconds
        onward, back = np.append(seconds, 0.0), np.append(0.0, seconds)
        return sends(onward, self.on), sends(back, self.on)

    @property
    def _messages(self) -> float:
        """The share of messages in what all passes take, where ranks take turns."""
        if self.on.turns == 1:
            return 0.0
        stages, sent = self.stages, sum(way.in_passes_s.sum() for way in self._sends)
        messages = (
            stages.tensor_comm_s
            + stages.context_comm_s
            + stages.expert_comm_s
            + stages.data_comm_s
        )
        passes = np.sum(stages.forward_s + stages.backward_s) + sent
        share = (np.sum(messages) + sent) / passes if passes else 0.0
        return float(min(share, 1.0))  # sums of the same numbers, in another order

    @property
    def _tied_s(self) -> Array:
        """By rank, the sum of the tied gradient over the pipeline's two ends."""
        ends = np.zeros(self.layout.pp)
        ends[[0, -1]] = layout_tied_sync(self.layout, self.job, self.on).seconds
        return ends

    def _by_rank(self, values: Array) -> Array:
        if len(self.layout.stages) == 1:
            return np.atleast_1d(np.asarray(values, dtype=float))
        holders, each = self._holders, np.broadcast_to(values, self._holders.shape)
        return np.bincount(
            holders.ravel(), weights=each.ravel(), minlength=self.layout.pp
        )
