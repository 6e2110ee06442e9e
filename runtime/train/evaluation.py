"""`Evaluation`: the forward half of a rank's stream, without gradients or dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from costmodel.schedule import Action, Kind, Stream, apart
from runtime.pipeline import Arrival, Hooks, Links, PipelineStage

FORWARDS = (Kind.F, Kind.SEND_F, Kind.RECV_F)


class Evaluation:
    """Carries out what of a training stream is forward, in its order."""

    def __init__(
        self,
        stream: Stream,
        stages: Mapping[int, PipelineStage],
        links: Links,
        hooks: Hooks,
    ) -> None:
        self.stream = tuple(one for one in apart(stream) if one.kind in FORWARDS)
        self._stages, self._links, self._hooks = stages, links, hooks

    def losses(
        self, tokens: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> list[Tensor]:
        """The micro-batches' losses, where this rank holds the last stage."""
        modules = [stage.module for stage in self._stages.values()]
        for module in modules:
            module.eval()
        try:
            with torch.no_grad():
                return self._carried_out(tokens, targets)
        finally:
            for module in modules:
                module.train()

    def _carried_out(
        self, tokens: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> list[Tensor]:
        there: dict[Action, Tensor] = {}
        losses = []
        self._links.expect(self._arrivals())
        for action in self.stream:
            if action.kind is Kind.RECV_F:
                there[action] = self._links.receive(action)
            elif action.kind is Kind.SEND_F:
                self._links.send(action, there.pop(action))
            else:
                losses += self._forward(action, there, tokens, targets)
        self._links.finish()
        return losses

    def _forward(
        self,
        action: Action,
        there: dict[Action, Tensor],
        tokens: Sequence[Tensor],
        targets: Sequence[Tensor],
    ) -> list[Tensor]:
        stage, number = self._stages[action.stage], action.micro_batch
        assert number is not None
        received = replace(action, kind=Kind.RECV_F)
        inputs = tokens[number] if stage.first else there.pop(received)
        given = (inputs, targets[number]) if stage.last else (inputs,)
        whole = stage.later.splitting(False) if stage.later else nullcontext()
        with self._hooks.forward(stage.index), whole:
            output: Tensor = stage.module(*given)
        if stage.last:
            return [output]
        kept = output.to(stage.dtype).contiguous()
        following = self._stages.get(action.stage + 1)
        if following is not None and following.copy == action.copy:
            there[replace(received, stage=action.stage + 1)] = kept
        else:
            there[replace(action, kind=Kind.SEND_F)] = kept
        return []

    def _arrivals(self) -> Iterator[Arrival]:
        for action in self.stream:
            if action.kind is Kind.RECV_F:
                stage = self._stages[action.stage]
                yield Arrival(
                    action=action,
                    shape=stage.boundary,
                    dtype=stage.dtype,
                    device=stage.device,
                )
