"""What a step executed: its actions in order, by when, and what each one sent.

    ActionClock   when each action began and ended. A CPU's clocks are read; on CUDA
                  events are left in the stream, so that nothing waits
    Recorder      what each action sent over which axis
    Listener      every collective and product by itself, each waited for

A dispatch mode sees every collective, whoever issues it: DTensor (functional
collectives), `fully_shard`, our own modules, and DDP's reducer, whose C++ goes through
PyTorch's dispatcher too. Autograd carries the mode into the threads it runs in, so
that a backward's collectives are seen on every device. It also costs every operator
some microseconds: record one step, and time others.

A step that is listened to overlaps nothing and is no measure of a step; what is heard
are the seconds of a collective in the midst of training, which a profile has from ranks
that do little else. Point-to-point messages are not waited for: two ranks that send to
each other would wait for ever (`runtime.observe` times them from both ends).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.schedule import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An action carried out; seconds of this machine's monotonic clock on a CPU, since
    the step's first action on CUDA. `busy_s` of them a CPU's thread was at work, not
    waiting."""

    action: Action
    began_s: float
    ended_s: float
    busy_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


class ActionObserver:
    """What an executor tells of a step: the groups it sends in, and each action.

    `axes` are the axes that process groups, by their names, speak over.
    """

    def __init__(self, axes: Mapping[str, str] | None = None) -> None:
        self.axes: dict[str, str] = dict(axes or {})

    def register_groups(self, axis: str, groups: Iterable[dist.ProcessGroup]) -> None:
        """*groups* speak over *axis*."""
        self.axes |= {group.group_name: axis for group in groups}

    def begin(self) -> None:
        """A step begins: forget the one before."""

    def observing(self, action: Action) -> AbstractContextManager[None]:
        """Around *action*."""
        raise NotImplementedError


class ActionClock(ActionObserver):
    """The times of a step's actions."""

    def __init__(
        self, device: torch.device, axes: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(axes)
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[Action, Any, Any, float]] = []

    def begin(self) -> None:
        self._marks = []

    @contextmanager
    def observing(self, action: Action) -> Iterator[None]:
        began, busy_s = self._now(), time.thread_time()
        yield
        busy_s = time.thread_time() - busy_s
        self._marks.append((action, began, self._now(), busy_s))

    def spans(self) -> tuple[Span, ...]:
        """The last step's actions, in order; waits for a CUDA device."""
        if self._cuda and self._marks:
            torch.cuda.synchronize()
        return tuple(
            Span(
                action=action,
                began_s=self._read(began),
                ended_s=self._read(ended),
                busy_s=busy_s,
            )
            for action, began, ended, busy_s in self._marks
        )

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self, mark: Any) -> float:
        if not self._cuda:
            return float(mark)
        first = self._marks[0][1]
        return float(first.elapsed_time(mark)) / 1e3  # CUDA counts in ms


NAMESPACES: Final = ("c10d", "_c10d_functional", "_dtensor")
ELSEWHERE: Final = "other"  # a group that is no axis

# The collective, and the position of the argument that is the full tensor. What is
# received was counted where it was sent; the others move nothing.
_C10D: Final = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "alltoall_base_": ("all_to_all", 1),
    "alltoall_": ("all_to_all", 1),
    "send": ("send", 0),
}
_FUNCTIONAL: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
    "isend": "send",
}
_SILENT: Final = ("recv", "irecv", "barrier", "monitored", "wait", "_wrap", "check")


class Recorder(ActionObserver):
    """Records the last step that an executor carried out with it.

    *groups* are this rank's process groups by mesh axis. Bytes are those of the full
    tensor, as in `profiles.samples.table.CollectiveKey`: an all-gather's output, a
    reduce-scatter's input. A group of one rank moves nothing and is left out; a group
    that is no axis is called "other".
    """

    def __init__(self, groups: Mapping[str, dist.ProcessGroup]) -> None:
        super().__init__({group.group_name: axis for axis, group in groups.items()})
        # Each action, and [collectives, bytes] by "axis:collective".
        self._records: list[tuple[Action, dict[str, list[int]]]] = []

    def begin(self) -> None:
        self._records = []

    @contextmanager
    def observing(self, action: Action) -> Iterator[None]:
        traffic: dict[str, list[int]] = {}
        self._records.append((action, traffic))

        def counted(func: Any, args: Any, call: Callable[[], Any]) -> Any:
            found = exchange(func, args)
            if found is not None:
                axis = self.axes.get(found.group.group_name, ELSEWHERE)
                both = traffic.setdefault(f"{axis}:{found.collective}", [0, 0])
                both[0] += 1
                both[1] += found.size_bytes
            return call()

        with _Watching(counted):
            yield

    def document(self) -> list[dict[str, Any]]:
        """`[{"action": "0F0", "collectives": {"tp:all_reduce": [count, bytes]}}]`."""
        return [
            {
                "action": str(action),
                "collectives": dict(
                    sorted(traffic.items(), key=lambda one: one[0].split(":"))
                ),
            }
            for action, traffic in self._records
        ]


class _Watching(TorchDispatchMode):
    """Has *carry_out*, of an operator, its arguments and its call, call each one."""

    def __init__(self, carry_out: Callable[[Any, Any, Callable[[], Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._carry_out = carry_out

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes back as local operators and collectives
        return self._carry_out(func, args, lambda: func(*args, **(kwargs or {})))


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective as it is called: over whom, which, and the full tensor's bytes."""

    group: dist.ProcessGroup
    collective: str
    size_bytes: int


def exchange(func: Any, args: tuple[Any, ...]) -> Exchange | None:
    """The collective that an operator call is; None for those that move nothing."""
    if func.namespace not in NAMESPACES:
        return None
    name = func._schema.name.split("::")[1]
    if name.startswith(_SILENT):
        return None
    group = _group(func, args)
    if group.size() == 1:
        return None
    collective, size_bytes = _counted(name, args, group.size())
    return Exchange(group, collective, size_bytes)


def _counted(name: str, args: tuple[Any, ...], ranks: int) -> tuple[str, int]:
    """The collective that an operator is, and the bytes of its full tensor."""
    if name in _C10D:
        collective, position = _C10D[name]
        return collective, _bytes(args[position])
    for start, collective in _FUNCTIONAL.items():
        if name.startswith(start):
            gathered = ranks if collective == "all_gather" else 1
            return collective, _bytes(args[0]) * gathered
    return name, _bytes(args[0])


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.itemsize
    return sum(map(_bytes, value))


def _group(func: Any, args: tuple[Any, ...]) -> dist.ProcessGroup:
    """The process group of a collective: an argument, or the name of one."""
    names = [argument.name for argument in func._schema.arguments]
    known = "process_group" if "process_group" in names else "group_name"
    given = args[names.index(known)]
    if isinstance(given, str):
        return c10d._resolve_process_group(given)  # type: ignore[arg-type]
    if isinstance(given, torch.ScriptObject):
        return dist.ProcessGroup.unbox(given)
    assert isinstance(given, dist.ProcessGroup)
    return given


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
    """Hears one step after another; `calls` and `operations` are those of all."""

    def __init__(self, axes: Mapping[str, str], device: torch.device) -> None:
        super().__init__(device, axes)
        self.calls: list[Call] = []
        self.operations: list[Operation] = []
        self._device = device

    @contextmanager
    def observing(self, action: Action) -> Iterator[None]:
        kind = str(action.kind)

        def heard(func: Any, args: Any, call: Callable[[], Any]) -> Any:
            found = exchange(func, args)
            if found is not None:
                return self._exchanged(kind, call, found)
            if self._device.type == "cpu" and func.namespace == "aten":
                return self._operated(kind, func, call, args)
            return call()

        with super().observing(action), _Watching(heard):
            yield

    def _exchanged(self, action: str, call: Callable[[], Any], found: Exchange) -> Any:
        """Carry out a collective and wait for it."""
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
                axis=self.axes.get(found.group.group_name, ELSEWHERE),
                ranks=tuple(dist.get_process_group_ranks(found.group)),
                collective=found.collective,
                size_bytes=found.size_bytes,
                seconds=seconds,
            )
        )
        return made

    def _operated(
        self, action: str, func: Any, call: Callable[[], Any], args: Any
    ) -> Any:
        """Carry out an operator of a CPU, where it is done when it returns."""
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
