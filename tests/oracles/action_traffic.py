"""What each action communicates when the runtime carries it out: counts and bytes.

The same rules that are priced (`sharding`, `data_parallel`, `transfers`), gathered by
action of the stream instead of by stage, so that a run's record can be held against
them. Bytes are those of the full tensor, as sample keys count them.

    F, B          tp: what the operators redistribute; cp: keys, values or heads;
                  ep: rows of experts; dp (of experts edp): ZeRO's gathers and scatters
    I, W          those of B; W has what weights' gradients alone are for
    SEND_F, _B    the boundary activation, and its gradient
    REDUCE_GRAD   tp: gradients of parameters that saw a part of sequence or heads
    STEP          the same of stages with two holders, which wait for each other there;
                  the tied table's gradient; one number for the gradient's norm

A stage's gradients travel over dp (and between its holders) with its last B or W; the
shards of a split backward in REDUCE_GRAD. Where shards span a part of dp, they travel
over dp_shard, and with the last ones over dp_replicate; in REDUCE_GRAD where they are
away by then, and over holders and replicas at once where a stage has two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from costmodel.layout.checkpoint_segments import remakes_input
from costmodel.layout.layout import LayerPlan, Layout, Stage
from costmodel.layout.offload import sums_shards_last
from costmodel.machine.framework import DEFAULT, Framework, load_framework
from costmodel.operators.attention import messages
from costmodel.operators.degrees import Degrees
from costmodel.operators.explicit_sharding import explicit
from costmodel.operators.sharding import (
    Collective,
    backward_collectives,
    forward_collectives,
    parameters,
    summands,
)
from costmodel.schedule.action import Action, Kind, Stream
from costmodel.schedule.communication import apart, passes
from costmodel.schedule.schedules import schedule_called
from costmodel.stages.data_parallelism import data_parallel
from profiles.hardware.precisions import Precision
from profiles.models.graph import Block, Operator
from profiles.models.graph import Kind as OperatorKind
from profiles.models.job import Job
from tests.oracles.expert_traffic import expert_messages
from tests.oracles.recomputed import made_again
from tests.oracles.traffic import Entry, Exchanged, Traffic, merged
from tests.oracles.weight_traffic import (
    GRADIENT_BYTES,
    Alike,
    gathered,
    reduced,
    scattered,
    summed_across,
    summed_over_copies,
)

NORM_BYTES: Final = 8  # the sum of squares of all gradients, in fp64
COMBINE, GROUPED = OperatorKind.COMBINE, OperatorKind.GROUPED_MATMUL
BACKWARDS: Final = (Kind.B, Kind.I, Kind.W)


def stream_traffic(job: Job, layout: Layout, stream: Stream) -> list[Exchanged]:
    """What each action of one pipeline rank's *stream* communicates, on one rank."""
    whole = load_framework(DEFAULT)
    stages = [
        StageTraffic(job=job, layout=layout, stage=stage, by=whole)
        for stage in layout.stages
    ]
    order: dict[tuple[bool, int], list[Action]] = defaultdict(list)
    for part in apart(stream):
        if part.kind in (Kind.F, *BACKWARDS):
            order[part.kind in BACKWARDS, part.stage].append(part)
    return [merged(_of_action(action, stages, order)) for action in stream]


def _of_action(
    action: Action,
    stages: Sequence[StageTraffic],
    order: Mapping[tuple[bool, int], Sequence[Action]],
) -> Iterator[Entry]:
    """*order* has the forwards and the backwards of each stage that the rank holds."""
    if action.kind is Kind.STEP:
        for stage in sorted({stage for _, stage in order}):
            if len(stages[stage].stage.held_by) > 1:
                yield from stages[stage].held_twice()
    for part in passes(action):
        alike = order.get((part.kind in BACKWARDS, part.stage), (part,))
        ends = (alike[0] is part, alike[-1] is part)
        yield from stages[part.stage].of(part.kind, *ends)


@dataclass(frozen=True, kw_only=True)
class StageTraffic:
    """What one rank of *stage* exchanges in each kind of action."""

    job: Job
    layout: Layout
    stage: Stage
    by: Framework

    def of(self, kind: Kind, first: bool, last: bool) -> Iterator[Entry]:
        """An action of *kind*: the *first* forward of the step, the *last* backward."""
        if kind is Kind.F:
            yield from self._forward(first)
        elif kind in BACKWARDS:
            yield from self._backward(kind, last)
        elif kind in (Kind.SEND_F, Kind.SEND_B):
            yield ("pp", "send"), Traffic(1, self._boundary_bytes)
        elif kind is Kind.REDUCE_GRAD and len(self.stage.held_by) == 1:
            if self._zero == 1 and schedule_called(self.layout.schedule).splits:
                yield from scattered(self._weights())
                yield from summed_across(self._weights())
            elif self._zero and self._sums_last:
                yield from summed_across(self._weights())
            yield from self.partial()
        elif kind is Kind.STEP:
            yield from self._step()

    def held_twice(self) -> Iterator[Entry]:
        """What the holders of a stage that has several do together, in STEP."""
        if self._zero:
            yield from summed_over_copies(self._weights())
        yield from self.partial()

    def partial(self) -> Iterator[Entry]:
        """The sum over tp of what is a summand on each of its ranks."""
        if self._partial:
            size = GRADIENT_BYTES * self._partial // self._shards
            yield ("tp", "all_reduce"), Traffic(1, size)

    def _forward(self, first: bool) -> Iterator[Entry]:
        for operator, block, degrees, _ in self._operators():
            yield from self._over_tp(self._there(operator, block, degrees))
            yield from self._beside("forward", operator, block, degrees)
        if self._zero == 3 or (self._zero and first):
            yield from gathered(self._weights(), self._weight_bytes)

    def _backward(self, kind: Kind, last: bool) -> Iterator[Entry]:
        for block, degrees, plan, goes_on in self._layers():
            early = self.by.stops_early and not goes_on
            again = made_again(block, plan.retention.recomputed, early)
            for operator in block.operators:
                found = self._back(operator, block, degrees)
                # What hides behind the input's gradient is for the weight's alone.
                absent = {Kind.I: True, Kind.W: False}.get(kind)
                sent = (one for one in found if one.hidden is not absent)
                yield from self._over_tp(sent)
                if kind is Kind.W:
                    continue
                yield from self._beside("backward", operator, block, degrees)
                # Rows that came back are there once more: their weights' gradients.
                name = "dispatch" if operator.kind is COMBINE else operator.name
                if name in again:
                    yield from self._over_tp(self._there(operator, block, degrees))
                    yield from self._beside("forward", operator, block, degrees)
        yield from self._of_weights(kind, last)

    def _of_weights(self, kind: Kind, last: bool) -> Iterator[Entry]:
        """What a backward, or the *last* one, sends of weights and their gradients."""
        zero, split = self._zero, schedule_called(self.layout.schedule).splits
        if zero == 3 and kind is not Kind.W:
            yield from gathered(self._weights(), self._weight_bytes)
        if zero >= 2 or (zero == 1 and last and not split):
            yield from scattered(self._made_in(kind))
        if zero and last and (zero >= 2 or not split) and not self._sums_last:
            yield from summed_across(self._weights())
        if zero == 0 and last:
            yield from reduced(self._weights(), self.by.gradients.bucket_bytes)

    def _step(self) -> Iterator[Entry]:
        ends = {self.layout.stages[place].held_by for place in (0, -1)}
        apart = len({frozenset(held_by) for held_by in ends}) > 1
        if self.job.graph.tied and apart and self.stage.held_by in ends:
            table = self._of_operator(*self.job.graph.tied[0][0])
            size = GRADIENT_BYTES * table // self._shards
            yield ("tied", "all_reduce"), Traffic(1, size)
        if self.layout.gpus > 1:
            yield ("world", "all_reduce"), Traffic(1, NORM_BYTES)

    @property
    def _precision(self) -> Precision:
        return self.layout.precision

    @property
    def _weight_bytes(self) -> float:
        return self._precision.parameter.bytes

    @property
    def _zero(self) -> int:
        shared = self._replicas > 1 or self.layout.offload.parameters
        return self.stage.plans[0].zero if shared else 0

    @property
    def _sums_last(self) -> bool:
        """Whether shards are summed over their replicas after the last backward."""
        copies = len(self.stage.held_by)
        return bool(sums_shards_last(self.layout.offload, self._zero, copies=copies))

    @property
    def _replicas(self) -> int:
        """Ranks that hold the same weights: `dp` of the run's mesh."""
        return self.stage.mesh.dp * self.stage.mesh.cp

    @property
    def _shards(self) -> int:
        mesh = self.stage.mesh
        return mesh.dp_shard * mesh.cp if self._zero else 1

    def _made_in(self, kind: Kind) -> Iterator[Alike]:
        """The units whose gradients are sent after a backward of *kind*: the
        embedding, which has no product, after I, the others after W; all after W where
        shards have replicas."""
        weights, *of_experts = self._weights()
        replicated = weights.shards < weights.ranks and not self._sums_last
        if kind is not Kind.B and replicated:
            yield from (weights, *of_experts) if kind is Kind.W else ()
            return
        ends = [
            self._count(operator, block, degrees)
            for operator, block, degrees, _ in self._operators()
            if block.name == "embedding"
        ]
        units, count = int(bool(ends)), sum(ends)
        if kind is Kind.I:
            yield replace(weights, units=units, count=count)
            return
        if kind is Kind.W:
            units, count = weights.units - units, weights.count - count
            weights = replace(weights, units=units, count=count)
        yield weights
        yield from of_experts

    def _weights(self) -> Iterator[Alike]:
        """The stage's weights and, where there are any, those of its experts."""
        mesh, copies = self.stage.mesh, len(self.stage.held_by)
        parallel = data_parallel(mesh, self._zero)
        yield Alike(
            axis="dp",
            ranks=self._replicas,
            shards=int(parallel.shards),
            copies=copies,
            units=self._units,
            count=self._parameters,
        )
        layers, count = self._of_experts
        if layers:
            yield Alike(
                axis="edp",
                ranks=mesh.size // (mesh.ep * mesh.etp),
                shards=int(parallel.of_experts().shards),
                copies=copies,
                units=layers,
                count=count,
            )

    @property
    def _units(self) -> int:
        """What `fully_shard` gathers at a time: each layer alone, the final norm with
        the head; a table that is the head too keeps embedding and those in one."""
        ends = {name for name in self.stage.layers if not name.isdigit()}
        together = self.job.graph.tied and {"embedding", "head"} <= ends
        return self.stage.body + (1 if together else len(ends - {"final_norm"}))

    @cached_property
    def _parameters(self) -> int:
        """Of the stage, per tp rank, but for those of experts; a table that is the head
        too counts once."""
        total = sum(
            self._count(operator, block, degrees)
            for operator, block, degrees, _ in self._operators()
            if operator.kind is not GROUPED
        )
        for holders in self.job.graph.tied:
            if all(block in self.stage.layers for block, _ in holders):
                total -= self._of_operator(*holders[0])
        return total

    @cached_property
    def _of_experts(self) -> tuple[int, int]:
        """Layers that have experts, and the parameters of those that a rank holds."""
        held = [
            (operator.name, self._count(operator, block, degrees))
            for operator, block, degrees, _ in self._operators()
            if operator.kind is GROUPED
        ]
        layers = sum(name == "mlp_down" for name, _ in held)
        return layers, sum(count for _, count in held)

    @cached_property
    def _partial(self) -> int:
        """Parameters whose gradient is a summand on each tp rank."""
        if self.stage.mesh.tp == 1:
            return 0
        return sum(
            self._whole(operator, block, degrees)
            for operator, block, degrees, _ in self._operators()
        )

    @property
    def _boundary_bytes(self) -> int:
        mesh, split = self.stage.mesh, self._degrees(self.stage.plans[0])
        tokens = self.layout.micro_batch(self.stage) * self.job.seq_len // mesh.cp
        share = mesh.tp if split.sequence_parallel else 1
        hidden = self.job.graph.narrowest
        return int(tokens // share * hidden * self._precision.activation.bytes)

    def _whole(self, operator: Operator, block: Block, degrees: Degrees) -> int:
        """Parameters of an operator that every tp rank has, and sees a part of."""
        if degrees.modules:
            of_rank = explicit(operator, block, degrees, self._precision)
            return int(of_rank.summands)
        return int(summands(operator, block, degrees))

    def _of_operator(self, block_name: str, operator_name: str) -> int:
        block = self.job.graph.block(block_name)
        degrees = self._degrees(self.stage.plans[0])
        return self._count(block.operator(operator_name), block, degrees)

    def _there(
        self, operator: Operator, block: Block, degrees: Degrees
    ) -> Iterable[Collective]:
        if degrees.modules:
            return explicit(operator, block, degrees, self._precision).forward
        return forward_collectives(operator, block, degrees, self._precision)

    def _back(
        self, operator: Operator, block: Block, degrees: Degrees
    ) -> Iterable[Collective]:
        if degrees.modules:
            return explicit(operator, block, degrees, self._precision).backward
        return backward_collectives(operator, block, degrees, self._precision)

    def _count(self, operator: Operator, block: Block, degrees: Degrees) -> int:
        if degrees.modules:
            block, degrees = explicit(operator, block, degrees, self._precision).local
        return int(parameters(operator, block, degrees))

    def _operators(self) -> Iterator[tuple[Operator, Block, Degrees, LayerPlan]]:
        for block, degrees, plan, _ in self._layers():
            for operator in block.operators:
                yield operator, block, degrees, plan

    def _layers(self) -> Iterator[tuple[Block, Degrees, LayerPlan, bool]]:
        """Every layer, and whether the next one is made again from what it makes."""
        graph = self.job.graph
        blocks = dict(zip(graph.layer_names, graph.layers, strict=True))
        layers = [
            (blocks[name], plan)
            for name, plan in zip(self.stage.layers, self.stage.plans, strict=True)
        ]
        inside = [remakes_input(plan.retention, block) for block, plan in layers]
        goes_on = (*inside[1:], False)
        for (block, plan), more in zip(layers, goes_on, strict=True):
            yield block, self._degrees(plan), plan, more

    def _degrees(self, plan: LayerPlan) -> Degrees:
        mesh = self.stage.mesh
        return Degrees(
            tp=np.asarray(mesh.tp),
            cp=np.asarray(mesh.cp),
            micro_batch=np.asarray(self.layout.micro_batch(self.stage)),
            seq_len=self.job.seq_len,
            sequence_parallel=plan.sharding == "megatron-sp" and mesh.tp > 1,
            cp_kind=self.layout.cp_kind,
            ep=np.asarray(mesh.ep),
            etp=np.asarray(mesh.etp),
            modules=plan.modules,
        )

    def _over_tp(self, found: Iterable[Collective]) -> Iterator[Entry]:
        if self.stage.mesh.tp > 1:
            for item in found:
                of_rank = self.stage.mesh.tp if item.kind == "all_to_all" else 1
                yield ("tp", item.kind), Traffic(1, int(item.size_bytes) // of_rank)

    def _beside(
        self, direction: str, operator: Operator, block: Block, degrees: Degrees
    ) -> Iterator[Entry]:
        """What is sent over other axes than tp, and what balances experts."""
        sent = expert_messages(direction, operator, block, degrees, self._precision)
        for axis, kind, size in sent:
            yield (axis, kind), Traffic(1, size)
        if self.stage.mesh.cp == 1 or operator.kind is not OperatorKind.ATTENTION:
            return
        for item in messages(direction, block, degrees, self._precision):
            times, size = int(item.times), int(item.size_bytes)
            yield ("cp", item.kind), Traffic(times, times * size)
