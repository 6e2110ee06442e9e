"""Tensors on their way to the host's memory and back, beside what the device computes.

Copies have a stream of their own and pinned memory. Out: of a layer's copies and the
next one's both may be on their way; a third layer waits for the first (two buffers).
Back: `start` fetches ahead, and `back` waits for what it fetched. On a CPU, whose
memory is the host's, both are plain copies.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

BUFFERS = 2


class Host:
    """The copies of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        on_cuda = device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(device) if on_cuda else None
        self._out: deque[Any] = deque()

    def sent(self) -> None:
        """A layer has begun all its copies out."""
        if self.stream is None:
            return
        self._out.append(self.stream.record_event())
        if len(self._out) > BUFFERS:
            torch.cuda.current_stream(self.device).wait_event(self._out.popleft())


class Away:
    """A 1-D tensor that is in the host's memory."""

    def __init__(self, flat: Tensor, host: Host) -> None:
        self._host = host
        self._fetched: tuple[Tensor, Any] | None = None
        stream = host.stream
        if stream is None:
            self._there = flat.clone()
            return
        self._there = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(host.device))
        with torch.cuda.stream(stream):
            self._there.copy_(flat, non_blocking=True)
        flat.record_stream(stream)

    def start(self) -> None:
        """Begin to bring it back."""
        stream = self._host.stream
        if stream is None or self._fetched is not None:
            return
        stream.wait_stream(torch.cuda.current_stream(self._host.device))
        with torch.cuda.stream(stream):
            here = self._there.to(self._host.device, non_blocking=True)
            self._fetched = here, stream.record_event()

    def back(self) -> Tensor:
        """It, on the device."""
        if self._host.stream is None:
            return self._there
        self.start()
        assert self._fetched is not None
        here, event = self._fetched
        current = torch.cuda.current_stream(self._host.device)
        current.wait_event(event)
        here.record_stream(current)
        return here
