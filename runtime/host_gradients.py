"""Gradients in the host's memory: sent down one by one, added up there.

On CUDA a gradient goes through pinned memory beside what the device computes; those of
further micro-batches are added to it on the host when they have come. On a CPU, whose
memory is the host's, they are there as they are made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from runtime.host import Host

ON_THEIR_WAY: Final = 64  # copies; the oldest is waited for before another one begins


class HostGradients:
    """This rank's gradients of a step, by the parameter's name; `begin` before it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sums: dict[str, Tensor] = {}
        self._coming: deque[tuple[str, Tensor, Any]] = deque()

    def begin(self) -> None:
        """Forget the step before."""
        self._settle(0)
        self._sums = {}

    @torch.no_grad()
    def take(self, name: str, gradient: Tensor) -> None:
        """Send a micro-batch's *gradient* down; the device may go on."""
        if not gradient.is_cuda:
            self._add(name, gradient)
            return
        there = self._host.down(gradient)
        self._coming.append((name, there, self._host.stream.record_event()))
        self._settle(ON_THEIR_WAY)

    @torch.no_grad()
    def sums(self) -> Mapping[str, Tensor]:
        """All that was taken, added up; waits for what is on its way."""
        self._settle(0)
        return self._sums

    def _settle(self, most: int) -> None:
        """Wait until at most so many are on their way."""
        while len(self._coming) > most:
            name, there, event = self._coming.popleft()
            event.synchronize()
            self._add(name, there)

    def _add(self, name: str, there: Tensor) -> None:
        known = self._sums.setdefault(name, there)
        if known is not there:
            known.add_(there)
