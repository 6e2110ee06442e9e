"""What each axis of the space may be, given the pins and what is chosen before it.

The rules are `costmodel.support.legality`'s, turned round: from "is this row legal?"
to "which values are?". Where the problem is to be executed,
`costmodel.support.support_table` leaves out values and combinations too, and
`costmodel.support.framework_features` where it is for a framework. Tests hold them
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from costmodel.layout import (
    CP_KINDS,
    SCHEDULES,
    SQRT,
    Uniform,
    asked_layers,
    interleaves,
    split_layers,
)
from costmodel.options import Pins
from costmodel.schedule import flushes, require_schedule, schedule_called
from costmodel.simulation import width_over, zero_plus_of
from costmodel.support import (
    MOST_PASSES,
    Filter,
    refusals,
    spread_violations,
    width_violations,
)
from planner.problem.problem import Problem
from planner.problem.table import Option, divisors
from profiles.errors import InvalidSpec
from profiles.models import Job

ONE_F_ONE_B: Final = SCHEDULES.index("1f1b")
AT_ONCE: Final = SCHEDULES.index("dualpipe-v")
ENDS: Final = 2  # stages of embedding and of head, which need no layer
RING, ALL_GATHER, ULYSSES, RSA = map(
    CP_KINDS.index, ("ring", "all-gather", "ulysses", "rsa")
)


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The options of *problem*, axis by axis, as tuples of integers."""

    problem: Problem

    @property
    def pins(self) -> Pins:
        return self.problem.pins

    @cached_property
    def body(self) -> int:
        """Numbered layers."""
        return self.problem.job.graph.body

    def carried(self, **values: Any) -> bool:
        """Whether the software that the plan is for carries *values* out, as far as
        anybody asked: a framework as far as they decide, `execute` with ones elsewhere.
        """
        if self._filter is not None and not self._filter.keeps(**values):
            return False
        if not self.problem.executable:
            return True
        if values.get("cp", 1) > 1 and "cp_kind" not in values:
            return any(self.carried(**values, cp_kind=kind) for kind in CP_KINDS)
        if values.get("tp", 1) > 1 and self.problem.needs_sequence_parallel:
            values = {"sequence_parallel": True, **values}
        if self._plain.zero and "zero" not in values:
            values = {"zero_group": values.get("dp", 1), **values}
        return not refusals(replace(self._plain, **values), self.problem.job)

    @cached_property
    def _filter(self) -> Filter | None:
        """What the framework has that the problem is limited to."""
        problem = self.problem
        if problem.capabilities is None:
            return None
        return Filter(of=problem.capabilities, job=problem.job, plain=self._plain)

    @cached_property
    def _plain(self) -> Uniform:
        problem = self.problem
        return Uniform(
            zero=3 if problem.offload.parameters else 0,
            precision=problem.precision,
            gradient_format=problem.gradient_format,
            flash_attention=problem.flash_attention,
            offload=problem.offload,
            zero_plus=zero_plus_of(self.pins),
            recompute=self._again,
        )

    @property
    def _again(self) -> str:
        """How all candidates recompute, if that is pinned and no choice by stage."""
        pinned = self.pins.recompute
        return pinned if pinned in self.problem.recomputes else "none"

    def tp(self) -> list[int]:
        """Degrees that divide the heads and the MLP."""
        job, pinned = self.problem.job, self.pins.tp
        widths = [tp for tp in divisors(self.problem.gpus) if _splits(job, tp)]
        return [tp for tp in widths if pinned in (None, tp) and self.carried(tp=tp)]

    def pp(self) -> list[int]:
        pinned = self.pins.pp
        depths = [pp for pp in divisors(self.problem.gpus) if self._cuts(pp)]
        return [pp for pp in depths if pinned in (None, pp) and self.carried(pp=pp)]

    def cp(self) -> list[int]:
        job, pinned = self.problem.job, self.pins.cp
        most = self.problem.gpus if job.graph.alike_in_rows else 1
        parts = (cp for cp in divisors(most) if job.seq_len % cp == 0)
        return [cp for cp in parts if pinned in (None, cp) and self.carried(cp=cp)]

    def experts(self, tp: int, cp: int, dp: int) -> list[Option]:
        """(ep, etp): each way to spread the experts over a stage's ranks."""
        moe, pins = self.problem.job.moe, self.pins
        if moe is None:
            return [(pins.ep or 1, pins.etp or 1)]
        found = []
        for ep in divisors(moe.experts):
            etp = pins.etp or width_over(tp, ep)
            spreads = tp * cp * dp % (ep * etp) == 0
            if pins.ep in (None, ep) and spreads and moe.expert_ffn_hidden % etp == 0:
                found.append((ep, etp))
        return [(e, w) for e, w in found if self.carried(tp=tp, dp=dp, ep=e, etp=w)]

    def micro_batches(self, dp: int) -> list[Option]:
        """Sequences a rank has at once: all divisors of its share of the batch."""
        share, pins = self.problem.job.global_batch // dp, self.pins
        return [
            (size,)
            for size in divisors(share)
            if pins.micro_batch in (None, size)
            and pins.micro_batches in (None, share // size)
        ]

    def sequence_parallel(self, tp: int, cp: int) -> list[Option]:
        """Off; and on where there is something to split, and it divides.

        Experts beside tensor parallelism need it, and products that are cut.
        """
        job = self.problem.job
        can = tp > 1 and job.seq_len % (tp * cp) == 0 and job.graph.splits is None
        needed = tp > 1 and self.problem.needs_sequence_parallel
        pinned = self.pins.sequence_parallel
        return [
            (on,)
            for on in range(needed, 1 + can)
            if pinned in (None, bool(on))
            and self.carried(tp=tp, cp=cp, sequence_parallel=bool(on))
        ]

    def cp_kinds(self, tp: int, cp: int) -> list[Option]:
        """One where there is nothing to exchange; rsa just where it is asked for: what
        it sends all-gather sends in less time, and both keep as much."""
        pinned = self.pins.cp_kind
        if cp == 1:
            return [(RING if pinned is None else CP_KINDS.index(pinned),)]
        legal = {
            RING: self.problem.job.seq_len % (2 * cp) == 0,
            ALL_GATHER: True,
            ULYSSES: not any(spread_violations(tp, cp, self.problem.job.graph)),
            RSA: pinned == "rsa" and not self.problem.flash_attention,
        }
        return [
            (kind,)
            for kind, can in legal.items()
            if can
            and pinned in (None, CP_KINDS[kind])
            and self.carried(tp=tp, cp=cp, cp_kind=CP_KINDS[kind])
        ]

    def at_once(self, pp: int, micro_batches: int) -> list[Option]:
        """Apart from others, where experts' exchanges matter: the schedules of which
        a forward and a backward hide those."""
        both = ((0,), (1,)) if self.problem.job.has_experts else ((0,),)
        return [one for one in both if self.schedules(pp, micro_batches, *one)]

    def schedules(
        self, pp: int, micro_batches: int, at_once: int | None = None
    ) -> list[Option]:
        """(schedule, virtual stages): all, but for those that do not flush unless that
        is allowed; or what is pinned. One rank has the same stream of all, and one
        micro-batch of 1f1b and gpipe."""
        key = (pp, micro_batches)
        found = self._schedules.get(key)
        if found is None:
            found = self._schedules[key] = self._ways(pp, micro_batches)
        if at_once is None or not self.problem.job.has_experts:
            return found
        return [way for way in found if (way[0] == AT_ONCE) == at_once]

    @cached_property
    def _schedules(self) -> dict[tuple[int, int], list[Option]]:
        return {}

    def _ways(self, pp: int, micro_batches: int) -> list[Option]:
        pinned = self.pins.schedule
        named: Sequence[str] = SCHEDULES if pinned is None else (pinned,)
        if not self.problem.allow_async or self.problem.offload.states:
            named = tuple(filter(flushes, named))
        if pinned is None and pp == 1:
            named = ("1f1b",)
        elif pinned is None and micro_batches == 1:
            named = tuple(name for name in named if name != "gpipe")
        return [
            (SCHEDULES.index(name), each)
            for name in named
            for each in self._held(schedule_called(name).chunks, pp)
            if self.pins.virtual_stages in (None, each)
            and 2 * pp * each * micro_batches <= MOST_PASSES
            and _runs(name, pp, each, micro_batches)
            and self.carried(pp=pp, schedule=name, virtual_stages=each)
            and self._cut_as_asked(name, pp * each)
        ]

    def recomputes(self) -> list[Option]:
        """One name where no layer is to have any. In segments are whole stages of
        layers of one kind: of several, the order decides which keep their input."""
        pinned, first = self.pins.recompute, self.pins.recompute_layers
        if pinned is None and first == 0:
            pinned = "none"
        joins = first is None and len(self.problem.job.graph.kinds) == 1
        return [
            (code,)
            for code, name in enumerate(self.problem.recomputes)
            if (name == pinned or (pinned is None and (joins or code != SQRT)))
            and self.carried(recompute=name, recompute_layers=first)
        ]

    def zeros(
        self,
        dp: int,
        cp: int,
        pp: int = 1,
        schedule: int = ONE_F_ONE_B,
        virtual_stages: int = 1,
        tp: int = 1,
        ep: int = 1,
    ) -> list[tuple[int, int]]:
        """(level, group). A level that shards over one rank is level 0.

        What of them is carried out hangs on the pipeline too, and in frameworks, or
        without a flush, on *tp* and *ep*.
        """
        by_width = self._filter is not None or self.problem.allow_async
        more = {"tp": tp, "ep": ep} if by_width else {}
        level, group = self.pins.zero, self.pins.zero_group
        groups = [one for one in divisors(dp) if group in (None, one)]
        sharding = [one for one in groups if one * cp > 1]
        away = self.problem.offload
        if away.states or (level and not sharding):
            sharding = groups  # the host is one more; or asked for, so called
        found = [(0, 1)] if 1 in groups else []
        found += [(one, size) for one in (1, 2, 3) for size in sharding]
        found = [one for one in found if one[0] == 3 or not away.parameters]
        plus = zero_plus_of(self.pins)
        if plus.anything:  # over all of dp, and the second copy over a part
            found = [(3, dp)] if dp * cp % plus.hpz_partition_size == 0 else []
        most = 3 if flushes(SCHEDULES[schedule]) else 1
        return [
            (one, size)
            for one, size in found
            if level in (None, one)
            and one <= most
            and self.carried(
                dp=dp,
                cp=cp,
                pp=pp,
                schedule=SCHEDULES[schedule],
                virtual_stages=virtual_stages,
                zero=one,
                zero_group=size,
                **more,
            )
        ]

    def cut(self, stages: int) -> tuple[int, ...] | None:
        """The layers of each of *stages* that the pins give, None where they do not.

        Raises InvalidSpec where they do not go together.
        """
        graph, pins = self.problem.job.graph, self.pins
        return asked_layers(
            graph.body,
            stages,
            graph.tail,
            every=pins.stage_layers,
            first=pins.first_stage_layers,
            last=pins.last_stage_layers,
        )

    def is_even(self, stages: int) -> bool:
        """Whether so many stages are cut as evenly as can be."""
        graph = self.problem.job.graph
        return self.cut(stages) in (None, split_layers(graph.body, stages, graph.tail))

    def _cut_as_asked(self, schedule: str, stages: int) -> bool:
        """Whether as many stages can have the layers that are asked for: uneven ones
        where they run 1F1B."""
        try:
            return self.is_even(stages) or schedule == "1f1b"
        except InvalidSpec:
            return False

    def _cuts(self, pp: int) -> bool:
        """Into as many stages, of which the ends may stand alone."""
        return pp <= self.body + ENDS and self._turns(pp)

    def _held(self, chunks: int | None, pp: int) -> list[int]:
        """Virtual stages that a rank may hold of a schedule that has so many, or any
        number from two on.

        Interleaved ones are cut evenly even where kinds of layers differ: the bounds
        count the lightest chunk as often as there are chunks between the ends.
        """
        if chunks == 1:
            return [1]
        if pp == 1:
            return []
        body, even = self.body, self.problem.job.graph.even
        fewest = (chunks,) if chunks else range(2, (body + 2) // pp + 1)
        return [
            each
            for each in fewest
            if self._turns(pp * each)
            and (
                interleaves(body, pp * each)
                or (chunks is not None and not even and pp * each <= body)
            )
        ]

    def _turns(self, stages: int) -> bool:
        """Whether stages hold whole turns, where kinds of layers take turns and all of
        the layers are whole turns."""
        turn = self.problem.job.graph.turn
        if turn <= 1 or self.body % turn:
            return True
        return stages <= ENDS or self.body % (stages * turn) == 0


def _runs(schedule: str, pp: int, virtual_stages: int, micro_batches: int) -> bool:
    try:
        require_schedule(schedule, pp, virtual_stages, micro_batches)
    except InvalidSpec:
        return False
    return True


def _splits(job: Job, tp: int) -> bool:
    moe = job.moe
    if moe is not None and moe.shared_experts * moe.shared_ffn_hidden % tp:
        return False
    return not any(width_violations(tp, job.graph))
