"""What ranks do with the small model: a step our way, and PyTorch's way."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage as TorchStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from costmodel.schedule.action import Action, Kind, Stream
from costmodel.schedule.schedules import SCHEDULES
from runtime.models.split_backward import defer_weight_grads
from runtime.pipeline.executor import Executor, PipelineStage
from runtime.pipeline.p2p import Links
from runtime.trace.recorder import Recorder
from tests.runtime.small_model import (
    ROWS,
    WIDTH,
    Case,
    Part,
    batch,
    gradients,
    held_parts,
)

CPU = torch.device("cpu")


class Watching:
    """Hooks that write down what they are called for."""

    def __init__(self) -> None:
        self.executor: Executor | None = None
        self.most_in_flight = 0
        self.called: list[str] = []

    def forward(self, stage: int) -> AbstractContextManager[object]:
        return self._counted()

    def backward(
        self, stage: int, kind: Kind, last: bool
    ) -> AbstractContextManager[object]:
        if last:
            self.called.append(f"last {stage}")
        return nullcontext()

    def reduce(self, stage: int) -> None:
        self.called.append(f"reduce {stage}")

    def step(self) -> None:
        self.called.append("step")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        yield
        assert self.executor is not None
        now = self.executor.in_flight + 1  # this forward's too
        self.most_in_flight = max(self.most_in_flight, now)


def executor(
    case: Case,
    group: dist.ProcessGroup,
    modules: Mapping[int, nn.Module],
    hooks: Watching,
    recorder: Recorder | None = None,
    *,
    stream: Stream | None = None,
    held_by: Sequence[int] | None = None,
) -> Executor:
    """The executor of this rank of *group*; *stream* and *held_by* are the case's."""
    copies = case.holders if held_by is None else (held_by,)
    own = case.held(group.rank()) if held_by is None else {}
    splits = SCHEDULES[case.schedule].splits
    held = {
        index: PipelineStage(
            index=index,
            module=module,
            first=index == 0,
            last=index == len(copies[0]) - 1,
            boundary=(ROWS, WIDTH),
            dtype=torch.float32,
            device=CPU,
            copy=own.get(index, 0),
            later=defer_weight_grads(module) if splits else None,
        )
        for index, module in modules.items()
    }
    hooks.executor = Executor(
        stream=case.streams[group.rank()] if stream is None else stream,
        stages=held,
        links=Links(group, *copies),
        micro_batches=case.micro_batches,
        hooks=hooks,
    )
    hooks.executor.recorder = recorder
    return hooks.executor


def ours(case: Case, group: dist.ProcessGroup) -> dict[str, Any]:
    """Two steps; what the second one did."""
    tokens, targets = batch(case.micro_batches)
    held, hooks = held_parts(case, group.rank()), Watching()
    recorder = Recorder({"pp": group})
    runner = executor(case, group, held, hooks, recorder)
    for _ in range(2):
        for part in held.values():
            part.zero_grad()
        hooks.called.clear()
        losses = runner.step(tokens.split(ROWS), targets.split(ROWS))
    return {
        "gradients": gradients(list(held.values())),
        "losses": losses,
        "recorded": recorder.document(),
        "in_flight": hooks.most_in_flight,
        "left": runner.in_flight,
        "called": hooks.called,
    }


def oracle(case: Case, group: dist.ProcessGroup) -> dict[str, Any]:
    """The same step by PyTorch's own schedule runtime; it knows one model copy."""
    if len(case.holders) > 1:
        return {}
    tokens, targets = batch(case.micro_batches)
    held = held_parts(case, group.rank())
    stages = [
        TorchStage(part, index, case.stages, CPU, group=group)
        for index, part in held.items()
    ]
    for stage in stages:
        stage.stage_index_to_group_rank = dict(enumerate(case.holders[0]))
    schedule = _PipelineScheduleRuntime(stages, case.micro_batches, loss_fn=F.mse_loss)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("\n".join(",".join(map(str, row)) for row in case.passes))
        file.flush()
        schedule._load_csv(file.name, format="compute_only")
    losses: list[Tensor] = []
    inputs = (tokens,) if 0 in held else ()
    if case.stages - 1 in held:
        schedule.step(*inputs, target=targets, losses=losses)
    else:
        schedule.step(*inputs)
    return {"gradients": gradients(list(held.values())), "losses": losses}


def run_cases(rank: int, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Each case both ways; no warning comes from ours."""
    group = dist.group.WORLD
    assert group is not None
    results = []
    for case in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            done = ours(case, group)
        results.append({"ours": done, "oracle": oracle(case, group)})
    return results


class Failing(nn.Module):
    """Raises when it is called for the second time."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part, self.calls = part, 0

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("no more of this")
        made: Tensor = self.part(inputs, targets)
        return made


def fail(rank: int, case: Case) -> str:
    """The last rank's stage raises; what every rank then says."""
    group = dist.group.WORLD
    assert group is not None
    tokens, targets = batch(case.micro_batches)
    modules: dict[int, nn.Module] = dict(held_parts(case, rank))
    if rank == case.pp - 1:
        modules = {index: Failing(held_parts(case, rank)[index]) for index in modules}
    runner = executor(case, group, modules, Watching())
    try:
        runner.step(tokens.split(ROWS), targets.split(ROWS))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def parsed(recorded: Sequence[Mapping[str, Any]]) -> Stream:
    return tuple(Action.parse(row["action"]) for row in recorded)
