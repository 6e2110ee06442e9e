"""`Listener`: every collective and product of a step by itself, each waited for.

A step that is listened to overlaps nothing and is no measure of a step; what it
hears are the seconds of a collective in the midst of training, which a profile has
from ranks that do little else. Point-to-point messages are not waited for: two ranks
that send to each other would wait for ever (`seen` times them from both ends).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.schedule import Action
from runtime.trace.action_timer import ActionClock
from runtime.trace.recorder import ELSEWHERE, exchange

SEND: Final = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective that this rank took part in. `seconds` begin when this rank was
    there: of the ranks of a group, the last one to come waits for nobody."""

    action: str  # the action's kind: F, B, REDUCE_GRAD …
    axis: str
    ranks: tuple[int, ...]
    collective: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An ATen operator: the shapes of its tensors, and their type."""

    action: str
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    seconds: float


class Listener(ActionClock):
    """Hears one step after another; `calls` and `operations` are those of all.

    *axes* are the groups' names and what they speak over, as in `Recorder.axes`.
    """

    def __init__(self, axes: Mapping[str, str], device: torch.device) -> None:
        super().__init__(device)
        self.calls: list[Call] = []
        self.operations: list[Operation] = []
        self._axes = dict(axes)
        self._device = device

    def know(self, axis: str, groups: Iterable[dist.ProcessGroup]) -> None:
        """Call what *groups* exchange by the name of *axis*."""
        self._axes |= {group.group_name: axis for group in groups}

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Listen to *action*."""
        with super().during(action), _Listening(self, str(action.kind)):
            yield

    def exchanged(self, action: str, call: Callable[[], Any], found: Any) -> Any:
        """Carry out a collective and wait for it."""
        group: dist.ProcessGroup = found.group
        self._settle()
        began = time.perf_counter()
        made = call()
        if found.collective == SEND:
            return made
        _wait(made)
        self._settle()
        seconds = time.perf_counter() - began
        self.calls.append(
            Call(
                action=action,
                axis=self._axes.get(group.group_name, ELSEWHERE),
                ranks=tuple(dist.get_process_group_ranks(group)),
                collective=found.collective,
                size_bytes=found.size_bytes,
                seconds=seconds,
            )
        )
        return made

    def operated(
        self, action: str, func: Any, call: Callable[[], Any], args: Any
    ) -> Any:
        """Carry out an operator; timed on a CPU, where it is done when it returns."""
        if self._device.type != "cpu" or func.namespace != "aten":
            return call()
        began = time.perf_counter()
        made = call()
        seconds = time.perf_counter() - began
        tensors = list(_tensors(args))
        if tensors:
            self.operations.append(
                Operation(
                    action=action,
                    name=str(func.overloadpacket).removeprefix("aten."),
                    shapes=tuple(tuple(one.shape) for one in tensors),
                    dtype=str(tensors[0].dtype).removeprefix("torch."),
                    seconds=seconds,
                )
            )
        return made

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class _Listening(TorchDispatchMode):
    def __init__(self, listener: Listener, action: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener, self._action = listener, action

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back as local operators and collectives

        def call() -> Any:
            return func(*args, **(kwargs or {}))

        found = exchange(func, args)
        if found is not None:
            return self._listener.exchanged(self._action, call, found)
        return self._listener.operated(self._action, func, call, args)


def _wait(made: Any) -> None:
    """Wait for a collective by what it returned: a Work, or a functional's tensor."""
    last = made[-1] if isinstance(made, list | tuple) else made
    if isinstance(last, torch.ScriptObject):
        dist.Work.unbox(last).wait()
    elif isinstance(last, Tensor):
        for one in made if isinstance(made, list) else [made]:
            torch.ops._c10d_functional.wait_tensor(one)


def _tensors(args: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, in order; of a list (foreach) all."""
    for one in args:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from (item for item in one if isinstance(item, Tensor))
