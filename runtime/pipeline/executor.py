"""`Executor`: one pipeline rank's stream of actions, carried out.

    RECV_F → F → SEND_F          between stages on other ranks
    RECV_B → B → SEND_B          or I → SEND_B, and W whenever there is time
    OVERLAP_F_B                  its forward, then its backward
    REDUCE_GRAD, STEP            what data parallelism and the optimizer do: hooks

Neighbouring stages on one rank hand their tensors over. Without a pipeline the same
stream accumulates gradients. Of a micro-batch a stage keeps, from F to B, its input and
the *edge* of its output in autograd's graph: the output itself may go once it is sent.
From I to W it keeps what `split_backward` puts off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from costmodel.schedule import RECEIVED, Action, Kind, Stream, apart
from profiles.errors import ActionFailed
from runtime.models import Deferred, Work
from runtime.pipeline.p2p import Arrival, Links
from runtime.trace import ActionObserver


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """A virtual stage on this rank: what to call, and the tensor that comes in.

    `first` takes tokens; `last` takes targets too and returns the mean loss.
    `boundary` and `dtype` are of the hidden states that come in, and `sent` of those
    that are handed on where that is another shape. `copy` is which copy
    of the model it is of; `later` defers weight gradients where the schedule splits
    backwards.
    """

    index: int
    module: nn.Module
    first: bool
    last: bool
    boundary: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    copy: int = 0
    sent: tuple[int, ...] | None = None
    later: Deferred | None = None


class Hooks(Protocol):
    """What a step does beside the passes. *stage* is the virtual stage's index."""

    def forward(self, stage: int) -> AbstractContextManager[object]:
        """Around a forward."""

    def backward(
        self, stage: int, kind: Kind, last: bool
    ) -> AbstractContextManager[object]:
        """Around B, I or W; *last* if it is the stage's last of the step."""

    def reduce(self, stage: int) -> None:
        """REDUCE_GRAD: the stage's gradients are whole when this returns."""

    def step(self) -> None:
        """STEP: the update."""


RECEIVES: Final = (Kind.RECV_F, Kind.RECV_B)
BACKWARDS: Final = (Kind.B, Kind.I, Kind.W)


@dataclass(frozen=True, slots=True)
class _Pass:
    """A micro-batch in flight through a stage; `output` is None where nothing that made
    it is trained, as of a first stage that is frozen."""

    inputs: Tensor
    output: GradientEdge | None


class Numbered(Protocol):
    """What belongs to micro-batches, by their numbers: a list, say."""

    def __getitem__(self, number: int, /) -> Tensor: ...


class Executor:
    """Carries out *stream*, with transfers, step after step.

    The loss of a micro-batch is multiplied by `loss_scale` before its backward, and
    `watch` is told of each action before it begins; these, `recorder` and, where steps
    are not flushed, `stream` may be exchanged between steps.
    """

    def __init__(
        self,
        *,
        stream: Stream,
        stages: Mapping[int, PipelineStage],
        links: Links,
        micro_batches: int,
        hooks: Hooks,
    ) -> None:
        self.recorder: ActionObserver | None = None
        self.watch: Callable[[Action], None] | None = None
        self._stages, self._links, self._hooks = stages, links, hooks
        self.loss_scale = 1 / micro_batches
        self.stream = stream
        self._deeds: dict[Kind, Callable[[Action], None]] = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._input_gradient,
            Kind.W: self._weight_gradients,
            Kind.OVERLAP_F_B: self._both,
            Kind.SEND_F: self._send,
            Kind.SEND_B: self._send,
            Kind.RECV_F: self._receive,
            Kind.RECV_B: self._receive,
            Kind.REDUCE_GRAD: lambda action: hooks.reduce(action.stage),
            Kind.STEP: lambda action: hooks.step(),
        }
        self._begin((), ())

    @property
    def stream(self) -> Stream:
        """What a step does."""
        return self._stream

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self._stream, passes = stream, apart(stream)
        backwards = (action for action in passes if action.kind in BACKWARDS)
        self._last = {action.stage: action for action in backwards}
        split = (action for action in passes if action.kind is Kind.I)
        self._split = {(action.stage, _number(action)) for action in split}

    @property
    def in_flight(self) -> int:
        """Passes between their F and their B or I: what is saved for a backward."""
        return len(self._passes)

    def step(
        self,
        tokens: Numbered,
        targets: Numbered,
        *,
        goes_on: bool = False,
        drains: bool = True,
    ) -> list[Tensor]:
        """One step; the micro-batches' losses, where this rank holds the last stage.

        It *goes_on* with the passes that the step before, which did not drain, has left
        in flight; unless it *drains* it leaves some itself.

        Raises ActionFailed, which names the action.
        """
        if goes_on:
            self._take(tokens, targets)
        else:
            self._begin(tokens, targets)
        if self.recorder is not None:
            self.recorder.register_groups("pp", self._links.groups)
            self.recorder.begin()
        self._links.expect(self._arrivals(), goes_on=goes_on)
        for action in self.stream:
            self._carry_out(action)
        if drains:
            self._links.finish()
        return [self._losses[number] for number in sorted(self._losses)]

    def _begin(self, tokens: Numbered, targets: Numbered) -> None:
        self._take(tokens, targets)
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._put_off: dict[tuple[int, int], list[Work]] = {}
        for stage in self._stages.values():
            if stage.later is not None:
                stage.later.forget()
        # What is made and not yet used, by the transfer that it came or goes by.
        self._there: dict[Action, Tensor] = {}

    def _take(self, tokens: Numbered, targets: Numbered) -> None:
        self._tokens, self._targets = tokens, targets
        self._losses: dict[int, Tensor] = {}

    def _carry_out(self, action: Action) -> None:
        if self.watch is not None:
            self.watch(action)
        recording = self.recorder.observing(action) if self.recorder else nullcontext()
        try:
            with recording:
                self._deeds[action.kind](action)
        except Exception as error:
            raise ActionFailed(action, error) from error

    def _forward(self, action: Action) -> None:
        stage, number = self._stages[action.stage], _number(action)
        inputs = (
            self._tokens[number]
            if stage.first
            else self._there.pop(replace(action, kind=Kind.RECV_F))
        )
        trains = torch.is_grad_enabled()
        if trains and not stage.first:
            inputs.requires_grad_()
        given = (inputs, self._targets[number]) if stage.last else (inputs,)
        with self._hooks.forward(stage.index), self._splitting(stage, number):
            output = stage.module(*given)
        if trains:
            edge = get_gradient_edge(output) if output.requires_grad else None
            self._passes[stage.index, number] = _Pass(inputs, edge)
        if stage.last:
            self._losses[number] = output.detach()
        else:
            self._hand_on(Kind.SEND_F, action, output.detach())

    def _backward(self, action: Action) -> None:
        stage, number = self._stages[action.stage], _number(action)
        if stage.last:
            gradient = torch.full((), self.loss_scale, device=stage.device)
        else:
            gradient = self._there.pop(replace(action, kind=Kind.RECV_B))
        taken = self._passes.pop((stage.index, number))
        with self._of_backward(action), self._splitting(stage, number):
            if taken.output is not None:
                torch.autograd.backward((taken.output,), (gradient,))
        if not stage.first:
            assert taken.inputs.grad is not None, "the input took no part in the output"
            self._hand_on(Kind.SEND_B, action, taken.inputs.grad)

    def _input_gradient(self, action: Action) -> None:
        self._backward(action)
        stage = self._stages[action.stage]
        assert stage.later is not None, "require_executable asks for it"
        self._put_off[stage.index, _number(action)] = stage.later.taken()

    def _weight_gradients(self, action: Action) -> None:
        waiting = self._put_off.pop((action.stage, _number(action)))
        with self._of_backward(action):
            while waiting:
                waiting.pop(0)()  # and lets go of what it was made of

    def _both(self, action: Action) -> None:
        for part in action.parts:
            self._deeds[part.kind](part)

    def _of_backward(self, action: Action) -> AbstractContextManager[object]:
        last = action == self._last[action.stage]
        return self._hooks.backward(action.stage, action.kind, last)

    def _splitting(
        self, stage: PipelineStage, number: int
    ) -> AbstractContextManager[object]:
        """Around a pass whose backward is an I and a W."""
        if stage.later is None:
            return nullcontext()
        return stage.later.splitting((stage.index, number) in self._split)

    def _hand_on(self, kind: Kind, action: Action, tensor: Tensor) -> None:
        """To the neighbouring stage if it is here, else to be sent."""
        whole = tensor.to(self._stages[action.stage].dtype).contiguous()
        received, step = RECEIVED[kind]
        neighbour = self._stages.get(action.stage + step)
        if neighbour is not None and neighbour.copy == action.copy:
            key = replace(action, kind=received, stage=action.stage + step)
        else:
            key = replace(action, kind=kind)
        self._there[key] = whole

    def _send(self, action: Action) -> None:
        self._links.send(action, self._there.pop(action))

    def _receive(self, action: Action) -> None:
        self._there[action] = self._links.receive(action)

    def _arrivals(self) -> Iterator[Arrival]:
        for action in self.stream:
            if action.kind in RECEIVES:
                stage = self._stages[action.stage]
                back = action.kind is Kind.RECV_B and stage.sent is not None
                yield Arrival(
                    action=action,
                    shape=stage.sent if back and stage.sent else stage.boundary,
                    dtype=stage.dtype,
                    device=stage.device,
                )


def _number(action: Action) -> int:
    assert action.micro_batch is not None
    return action.micro_batch
