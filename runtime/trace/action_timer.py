"""`ActionClock`: when each action of a step began and ended, on this rank.

A CPU's clocks are read, the wall's and this thread's own; on CUDA events are left in
the stream, so that nothing waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

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


class ActionClock:
    """What an executor tells of its actions, as times; `begin` before each step."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[Action, Any, Any, float]] = []

    def know(self, axis: str, groups: Iterable[dist.ProcessGroup]) -> None:
        """Actions are timed whole, whichever groups they speak in."""

    def begin(self) -> None:
        """Forget the step before."""
        self._marks = []

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Time *action*."""
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
