"""Tensors on their way to the host's memory and back, beside what the device computes.

Copies have a stream of their own and pinned memory. Of activations (`Away`), out: of a
layer's copies and the next one's both may be on their way; a third layer waits for the
first (two buffers). Back: `start` fetches ahead, and `back` waits for what it fetched.
On a CPU, whose memory is the host's, copies are plain ones.
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

    def empty(self, size: torch.Size, dtype: torch.dtype) -> Tensor:
        """A tensor in the host's memory that copies go to and come from."""
        return torch.empty(size, dtype=dtype, pin_memory=self.stream is not None)

    def down(self, tensor: Tensor) -> Tensor:
        """*tensor* in the host's memory, where it is once `stream` has come so far."""
        there = self.empty(tensor.shape, tensor.dtype)
        if self.stream is None:
            return there.copy_(tensor)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            there.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.stream)
        return there

    def up(self, there: Tensor, here: Tensor) -> None:
        """Begin to write *there*, of the host, into *here*; `arrived` waits for it."""
        if self.stream is None:
            here.copy_(there)
            return
        narrow = there
        if there.dtype is not here.dtype:  # cast here: a copy that casts is not pinned
            narrow = self.empty(there.shape, here.dtype).copy_(there)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            here.copy_(narrow, non_blocking=True)

    def arrived(self) -> None:
        """What the device does from now on comes after all copies that have begun."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

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
        self._there = host.down(flat)

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
