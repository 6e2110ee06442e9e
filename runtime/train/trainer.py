"""`Trainer`: one rank's part of a run, step after step.

batch → the stream's actions (passes, transfers, reduction, update) → mean loss
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from costmodel.layout import Layout
from costmodel.operators import GradientCompression
from costmodel.schedule import (
    Action,
    Kind,
    Stream,
    apart,
    flushes,
    streams,
    with_transfers,
)
from profiles.models import Job
from runtime.data import Source
from runtime.models import policy
from runtime.modules import Samples, TracedStage, WholeStage
from runtime.offload import DiskOptimizer
from runtime.optim import LearningRate, LossScale, OneBitAdam, Optimizer, Settings
from runtime.parallel import (
    Buffered,
    Context,
    Meshes,
    Sharded,
    Signs,
    context_group,
    round_at_random,
)
from runtime.pipeline import Executor, Links
from runtime.remat import Rematerializer
from runtime.trace import ActionObserver, Recorder
from runtime.train.build import Builder, LocalStage, Setup
from runtime.train.module_build import ModuleBuilder, SharedParameters
from runtime.train.stale import Flow, Late, StaleStep, Told
from runtime.train.step_hooks import Step, Tied, TiedTable

BEYOND: Final = 2**40  # sequences of a source: no training reads so many
FORWARDS: Final = (Kind.F, Kind.SEND_F, Kind.RECV_F)  # what an evaluation does


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step, as every rank sees it."""

    loss: float  # mean over the tokens of the global batch, nats
    gradient_norm: float
    learning_rate: float
    seconds: float


class Trainer:
    """Built by every rank at once; `step` is called by every rank at once."""

    def __init__(
        self,
        job: Job,
        layout: Layout,
        source: Source,
        *,
        settings: Settings,
        setup: Setup,
        rate: LearningRate | None = None,
        late: Late | None = None,
    ) -> None:
        self.rate = rate
        self.skipped: tuple[int, ...] = ()  # batches that no step reads
        self.job, self.layout, self.source = job, layout, source
        self.seed, self.device = setup.seed, setup.device
        self.context = Context(
            group=context_group(layout), kind=layout.cp_kind, seq_len=job.seq_len
        )
        self.rules = policy(layout.precision_name)
        self.rules.multiply()
        meshes = Meshes.of(layout, self.device.type, experts=job.has_experts)
        self.mesh = meshes.weights
        self.stages, tied = self._built(meshes, setup)
        self.optimizer = optimizer(
            self.stages, settings, self.device, setup.offload_dir
        )
        self.recorder = Recorder(meshes.groups())
        if tied.group is not None:
            self.recorder.register_groups("tied", [tied.group])
        if self.context.group is not None:
            self.recorder.register_groups("cp", [self.context.group])
        for held in self.stages:
            if held.copies > 1:
                for axis, group in held.replicas.named():
                    self.recorder.register_groups(axis, [group])
        self._micro_batch = layout.micro_batch(layout.stages[0])
        self._places = self.context.places()
        self._step = self._hooks(tied, late or Late())
        self._equip(setup)
        stream = rank_stream(layout, self.mesh["pp"].get_local_rank())
        stages = {held.index: held for held in self.stages}
        links = Links(self.mesh["pp"].get_group(), *_holders(layout))
        onward = tuple(one for one in apart(stream) if one.kind in FORWARDS)
        trial = tuple(one for one in stream if one.kind is not Kind.STEP)
        self._executor, self._onward, self._trial = (
            Executor(
                stream=actions,
                stages=stages,
                links=links,
                micro_batches=layout.micro_batches,
                hooks=self._step,
            )
            for actions in (stream, onward, trial)
        )

    def _equip(self, setup: Setup) -> None:
        """What compresses and rematerializes, where that is asked for."""
        if self.rules.rounds_updates:
            self.optimizer.rounding = round_at_random
        self._one_bit = exchanging(self.optimizer, self.stages, setup.gradients)
        self.rematerializer: Rematerializer | None = None
        if setup.budget_bytes is not None:
            self.rematerializer = Rematerializer(setup.budget_bytes)
            self._step.saving = self.rematerializer.recording

    def _built(self, meshes: Meshes, setup: Setup) -> tuple[list[LocalStage], Tied]:
        """This rank's stages, and what other stages hold too."""
        parts = (self.job, self.layout, meshes, self.context, setup)
        if isinstance(self.source, Samples):
            builder = ModuleBuilder(*parts, samples=self.source)
            shared = SharedParameters(builder.cut, self.layout, meshes.weights)
            return builder.stages(), shared
        tied = TiedTable(self.job, self.layout, meshes.weights)
        return Builder(*parts).stages(), tied

    def _hooks(self, tied: Tied, late: Late) -> Step:
        """What a step does beside its passes."""
        parts = (self.stages, self.optimizer, tied, self.mesh, self.rules)
        self._flow: Flow | None = None
        if flushes(self.layout.schedule):
            return Step(*parts)
        group, rank = self.mesh["pp"].get_group(), self.mesh["pp"].get_local_rank()
        hooks = StaleStep(*parts, layout=self.layout, rank=rank, late=late)
        self._flow = Flow(self.layout, rank, hooks, self._trained_on, Told(group))
        return hooks

    @property
    def steps_to_fill(self) -> int:
        """Steps until as much is in flight as ever is."""
        return 1 if self._flow is None else self._flow.steps_to_fill

    def step(
        self,
        number: int,
        *,
        record: bool = False,
        watch: ActionObserver | None = None,
        until: int | None = None,
    ) -> StepResult:
        """Carry out step *number* (from 0), for *watch* to see, or on record. Where
        steps are not flushed the pipeline is empty again after that before *until*, by
        default after this one.

        Raises what an action raised, named.
        """
        self._seeded(number)
        if self.rate is not None:  # also a constant one: a checkpoint has another
            self.optimizer.learning_rate = self.rate.at(number)
        self._step.begin()
        self._exchange()
        self._executor.recorder = self.recorder if record else watch
        self._executor.loss_scale = self.scale.value / self.layout.micro_batches
        if self._flow is None:
            batch = self._trained_on(number)
            self._wait()
            began = time.perf_counter()
            loss = self._mean(self._executor.step(*batch))
        else:
            began = time.perf_counter()
            losses = self._flow.step(self._executor, number, until)
            loss = self._heard(losses)
        self._step.done()
        return StepResult(
            loss=loss,
            gradient_norm=self._step.norm,
            learning_rate=self.optimizer.learning_rate,
            seconds=time.perf_counter() - began,
        )

    def _exchange(self) -> None:
        """Where the optimizer exchanges momenta, gradients stay each rank's own."""
        if self._one_bit is not None:
            for held in self.stages:
                assert isinstance(held.parallel, Buffered)
                held.parallel.alone = self._one_bit.exchanges

    def sound(self, result: StepResult) -> bool:
        """Whether a step left finite numbers behind, on every rank alike: its loss is
        finite, and so is its gradients' norm, unless the update was left out for it."""
        known = self._flow is None  # else each stage has a norm of its own
        finite = isfinite(result.gradient_norm) or self.scale.dynamic or not known
        return isfinite(result.loss) and finite

    @property
    def scale(self) -> LossScale:
        """What the loss is multiplied by before its backward."""
        return self._step.scale

    def evaluate(self, source: Source, batches: int) -> float:
        """The mean loss over *batches* global batches of *source* that training does
        not come to.

        The same walks on a synthetic chain never come twice. Of a file other crops are
        read, which may lie over those of training: evaluate on another file.
        """
        means = []
        self._read(source, training=False)
        try:
            with torch.no_grad():
                for number in range(batches):
                    losses = self._onward.step(*self._batch(number, source, BEYOND))
                    means.append(self._mean(losses))
        finally:
            self._read(self.source, training=True)
        return sum(means) / len(means)

    def _read(self, source: Source, *, training: bool) -> None:
        """Modules compute the inputs of *source* by themselves."""
        for held in self.stages:
            held.module.train(training)
            if isinstance(held.module, TracedStage | WholeStage):
                assert isinstance(source, Samples)
                held.module.samples = source

    def trial(self, number: int) -> dict[str, Tensor]:
        """Copies of this rank's gradients of step *number*, which is not made."""
        tokens, targets = self._batch(batch_of(number, self.skipped), self.source)
        self._seeded(number)
        self._step.begin()
        self._trial.loss_scale = self.scale.value / self.layout.micro_batches
        self._trial.step(tokens, targets)
        return {name: one.clone() for name, one in self._step.summed().items()}

    def distance(self, one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
        """The square of how far gradients of all ranks are apart."""
        return self._step.squares({name: one[name] - two[name] for name in one})

    def forget(self) -> None:
        """Let the last step's gradients go, as the next one would at its start."""
        self._step.begin()

    @property
    def updated(self) -> bool:
        """Whether this rank has made all its update of a step that did not end."""
        return self._step.updated

    def undo(self) -> None:
        """Take back what this rank has updated in a step that did not end."""
        self._step.undo()

    def watch(self, told: Callable[[Action], None]) -> None:
        """Tell *told* of each action before it begins."""
        self._executor.watch = told

    def gradients(self) -> dict[str, Tensor]:
        """The local gradients of the last step, after clipping."""
        return self._step.gradients()

    def _trained_on(self, number: int) -> tuple[list[Tensor], list[Tensor]]:
        """The batch that step *number* trains on."""
        return self._batch(batch_of(number, self.skipped), self.source)

    def _batch(
        self, number: int, source: Source, after: int = 0
    ) -> tuple[list[Tensor], list[Tensor]]:
        """This rank's micro-batches of a step: what is read, and what comes next."""
        replica = self.mesh["dp"].get_local_rank() // self.context.ranks
        mine = self.layout.micro_batches * self._micro_batch
        first = after + number * self.job.global_batch + mine * replica
        sequences = source.sequences(first, mine)
        read, follows = self._places, self._places + 1
        tokens, targets = (
            sequences[:, columns].to(self.device).split(self._micro_batch)
            for columns in (read, follows)
        )
        return list(tokens), list(targets)

    def _seeded(self, number: int) -> None:
        """Dropout's random numbers: of the seed, the step and the rank alone; of the
        first tensor-parallel rank where all of them hold the whole stream."""
        rank = dist.get_rank()
        if not any(held.sequence_parallel for held in self.stages):
            rank = dist.get_global_rank(self.mesh["tp"].get_group(), 0)
        torch.manual_seed(hash((self.seed, number, rank)) % 2**63)

    def _mean(self, losses: Iterable[Tensor]) -> float:
        own = [loss.float() for loss in losses]
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        if own:
            total += torch.stack(own).sum() / self.layout.micro_batches
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
        return float(total) / (self.mesh["dp"].size() * self.mesh["tp"].size())

    def _heard(self, losses: Iterable[Tensor]) -> float:
        """The same where no rank waits for those of later stages."""
        assert self._flow is not None
        own, dp = [loss.float() for loss in losses], self.mesh["dp"]
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        if own:
            total += torch.stack(own).sum() / self.layout.micro_batches / dp.size()
            if dp.size() > 1:
                dist.all_reduce(total, group=dp.get_group())
        return self._flow.heard(total)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if dist.get_world_size() > 1:
            dist.barrier()


def batch_of(step: int, skipped: Sequence[int]) -> int:
    """The batch that *step* reads where those of *skipped* are left out.

    >>> [batch_of(step, (2, 3)) for step in range(4)]
    [0, 1, 4, 5]
    """
    for one in sorted(set(skipped)):
        step += one <= step
    return step


def optimizer(
    stages: Sequence[LocalStage],
    settings: Settings,
    device: torch.device,
    folder: Path | None = None,
) -> Optimizer:
    """The one optimizer of all *stages*, where their states are; on a drive in a file
    of *folder* (or of the default one)."""
    named = [pair for stage in stages for pair in stage.named_parameters()]
    away = stages[0].away
    found = away.optimizer(named, settings, device, folder=folder)
    if isinstance(found, DiskOptimizer):
        for stage in stages:
            if away.shards:
                found.read_for(stage.module, passes=away.passes)
            if away.gradients:
                assert isinstance(stage.parallel, Sharded)
                stage.parallel.send_to(found.take_scattered())
    return found


def exchanging(
    optimizer: Optimizer, stages: Sequence[LocalStage], how: GradientCompression
) -> OneBitAdam | None:
    """1-bit Adam in place of Adam, where that is asked for and there are ranks."""
    group = stages[0].replicas.weights
    if how.kind != "1bit" or group is None or group.size() == 1:
        return None
    inner = OneBitAdam(
        optimizer.inner.param_groups,
        warm_up=how.number,
        mean=Signs(group).mean,
        decoupled=optimizer.settings.name == "adamw",
    )
    optimizer.inner = inner
    return inner


def rank_stream(layout: Layout, rank: int) -> Stream:
    """All that pipeline rank *rank* does in a step: the stream that is priced."""
    order = streams(
        layout.schedule, layout.pp, layout.virtual_stages, layout.micro_batches
    )
    return with_transfers(order, *_holders(layout))[rank]


def _holders(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The pipeline rank of each stage, once for each copy of the model."""
    return tuple(zip(*(stage.held_by for stage in layout.stages), strict=True))
