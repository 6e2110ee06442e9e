"""What each axis of the space may be, given the pins and what is chosen before it.

The rules are `costmodel.legality`'s, turned round: from "is this row legal?" to "which
values are?". Where the problem is to be executed, `costmodel.support` leaves out values
and combinations too. Tests hold them together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from costmodel.columns import SCHEDULES, SQRT
from costmodel.layout import CP_KINDS
from costmodel.pins import Pins
from costmodel.question import width_over
from costmodel.schedule import require_schedule, schedule_called
from costmodel.support import refusals
from costmodel.uniform import Uniform, interleaves
from planner.problem import Problem
from planner.table import Option, divisors
from profiles.errors import InvalidSpec
from profiles.models.spec import DecoderSpec

ONE_F_ONE_B: Final = SCHEDULES.index("1f1b")
GPIPE: Final = SCHEDULES.index("gpipe")
INTERLEAVED: Final = SCHEDULES.index("interleaved")
SEARCHED: Final = ("1f1b", "gpipe", "interleaved")
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
        """Whether `execute` carries *values* out, ones elsewhere; if that is asked."""
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
    def _plain(self) -> Uniform:
        problem = self.problem
        return Uniform(
            zero=3 if problem.offload.parameters else 0,
            precision=problem.precision,
            gradient_format=problem.gradient_format,
            flash_attention=problem.flash_attention,
            offload=problem.offload,
            recompute=self._again,
        )

    @property
    def _again(self) -> str:
        """How all candidates recompute, if that is pinned and no choice by stage."""
        pinned = self.pins.recompute
        return pinned if pinned in self.problem.recomputes else "none"

    def tp(self) -> list[int]:
        """Degrees that divide the heads and the MLP."""
        spec, pinned = self.problem.job.spec, self.pins.tp
        widths = divisors(self.problem.gpus)
        if isinstance(spec, DecoderSpec):
            widths = tuple(tp for tp in widths if _splits(spec, tp))
        return [tp for tp in widths if pinned in (None, tp) and self.carried(tp=tp)]

    def pp(self) -> list[int]:
        pinned = self.pins.pp
        depths = (pp for pp in divisors(self.problem.gpus) if self._cuts(pp))
        return [pp for pp in depths if pinned in (None, pp) and self.carried(pp=pp)]

    def cp(self) -> list[int]:
        seq_len, pinned = self.problem.job.seq_len, self.pins.cp
        parts = (cp for cp in divisors(self.problem.gpus) if seq_len % cp == 0)
        return [cp for cp in parts if pinned in (None, cp) and self.carried(cp=cp)]

    def experts(self, tp: int, cp: int, dp: int) -> list[Option]:
        """(ep, etp): each way to spread the experts over a stage's ranks."""
        spec, pins = self.problem.job.spec, self.pins
        moe = spec.moe if isinstance(spec, DecoderSpec) else None
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
        can = tp > 1 and self.problem.job.seq_len % (tp * cp) == 0
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
            ULYSSES: self._heads(tp) % cp == 0,
            RSA: pinned == "rsa" and not self.problem.flash_attention,
        }
        return [
            (kind,)
            for kind, can in legal.items()
            if can
            and pinned in (None, CP_KINDS[kind])
            and self.carried(tp=tp, cp=cp, cp_kind=CP_KINDS[kind])
        ]

    def schedules(self, pp: int, micro_batches: int) -> list[Option]:
        """(schedule, virtual stages); one where all are the same stream."""
        flat = self._flat(same=pp == 1 or micro_batches == 1)
        found = [(code, 1) for code in flat]
        if micro_batches % pp == 0:
            found += [(INTERLEAVED, virtual) for virtual in self._chunks(pp)]
        found += self._unsearched(pp, micro_batches)
        return [
            (code, stages)
            for code, stages in found
            if self.pins.schedule in (None, SCHEDULES[code])
            and self.pins.virtual_stages in (None, stages)
            and self.carried(pp=pp, schedule=SCHEDULES[code], virtual_stages=stages)
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
    ) -> list[tuple[int, int]]:
        """(level, group). A level that shards over one rank is level 0.

        What of them `execute` carries out hangs on the pipeline too.
        """
        level, group = self.pins.zero, self.pins.zero_group
        groups = [one for one in divisors(dp) if group in (None, one)]
        sharding = [one for one in groups if one * cp > 1]
        away = self.problem.offload
        if away.states or (level and not sharding):
            sharding = groups  # the host is one more; or asked for, so called
        found = [(0, 1)] if 1 in groups else []
        found += [(one, size) for one in (1, 2, 3) for size in sharding]
        found = [one for one in found if one[0] == 3 or not away.parameters]
        return [
            (one, size)
            for one, size in found
            if level in (None, one)
            and self.carried(
                dp=dp,
                cp=cp,
                pp=pp,
                schedule=SCHEDULES[schedule],
                virtual_stages=virtual_stages,
                zero=one,
                zero_group=size,
            )
        ]

    def _cuts(self, pp: int) -> bool:
        return pp <= self.body and self._turns(pp)

    def _unsearched(self, pp: int, micro_batches: int) -> list[tuple[int, int]]:
        """A pinned schedule that is not searched otherwise: the closed forms of those
        are loose, and too many candidates would have to be simulated."""
        name = self.pins.schedule
        if name is None or name in SEARCHED:
            return []
        chunks = schedule_called(name).chunks
        several = [1] if chunks == 1 else self._chunks(pp)
        return [
            (SCHEDULES.index(name), each)
            for each in several
            if chunks in (None, each) and _runs(name, pp, each, micro_batches)
        ]

    def _chunks(self, pp: int) -> list[int]:
        """Virtual stages that a rank may hold, from two on."""
        if pp == 1:
            return []
        return [
            virtual
            for virtual in range(2, (self.body + 2) // pp + 1)
            if interleaves(self.body, pp * virtual) and self._turns(pp * virtual)
        ]

    def _turns(self, stages: int) -> bool:
        """Whether stages hold whole turns, where kinds of layers take turns."""
        turn = self.problem.job.graph.turn
        return turn <= 1 or self.body % (stages * turn) == 0

    def _flat(self, *, same: bool) -> list[int]:
        """Schedules with one stage a rank."""
        if same and self.pins.schedule is None:
            return [ONE_F_ONE_B]
        return [ONE_F_ONE_B, GPIPE]

    def _heads(self, tp: int) -> int:
        """Attention heads of a tensor-parallel rank."""
        spec = self.problem.job.spec
        return spec.heads // tp if isinstance(spec, DecoderSpec) else 0


def _runs(schedule: str, pp: int, virtual_stages: int, micro_batches: int) -> bool:
    try:
        require_schedule(schedule, pp, virtual_stages, micro_batches)
    except InvalidSpec:
        return False
    return True


def _splits(spec: DecoderSpec, tp: int) -> bool:
    moe = spec.moe
    if spec.has_dense_mlp and spec.ffn_hidden % tp:
        return False
    if moe is not None and moe.shared_experts * moe.shared_ffn_hidden % tp:
        return False
    shared = spec.kv_heads % tp == 0 or tp % spec.kv_heads == 0
    return shared and spec.heads % tp == 0
