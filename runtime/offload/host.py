"""Copies to the host's memory and back, overlapped with what the device computes.

They use a stream of their own and pinned memory. Activations (`OnHost`) go out with two
buffers: the copies of two layers may be under way, a third layer waits for the first.
`start` begins to bring one back, and `back` waits for it. On a CPU, whose memory is the
host's, copies are plain ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor, nn

from runtime.optim import Leaf, Make, Optimizer, Settings, local, scale

BUFFERS = 2  # layers' copies of activations that may be on their way out
ON_THEIR_WAY: Final = 64  # gradients; the oldest is waited for before another one


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


class OnHost:
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


class HostGradients:
    """This rank's gradients of a step, by the parameter's name; `begin` before it.

    On CUDA a gradient goes down through pinned memory beside what the device computes,
    at most `most` at once; those of further micro-batches are added to it when they
    have come. On a CPU, whose memory is the host's, they are there as they are made.
    """

    most = ON_THEIR_WAY

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
        self._settle(self.most)

    def follow(self, name: str, parameter: nn.Parameter, over: int = 1) -> None:
        """Take each gradient of *parameter*'s shard, divided by *over*, as soon as it
        is made."""

        def take(sharded: Tensor) -> None:
            assert sharded.grad is not None
            made = local(sharded.grad)
            self.take(name, made.div_(over) if over > 1 else made)
            sharded.grad = None

        parameter.register_post_accumulate_grad_hook(take)

    @torch.no_grad()
    def sums(self) -> Mapping[str, Tensor]:
        """All that was taken, added up, by name; waits for what is on its way."""
        self._settle(0)
        return self._sums

    def changing(self, names: Collection[str]) -> AbstractContextManager[None]:
        """Around a change, in place, of those of `sums` that are called *names*."""
        return nullcontext()

    def _add(self, name: str, made: Tensor) -> None:
        known = self._sums.setdefault(name, made)
        if known is not made:
            known.add_(made)

    def _settle(self, most: int) -> None:
        """Wait until at most so many are on their way."""
        while len(self._coming) > most:
            name, there, event = self._coming.popleft()
            event.synchronize()
            self._add(name, there)


class HostOptimizer(Optimizer):
    """As `Optimizer`, of parameters on *device*, with masters, moments and update in
    the host's memory; gradients may be on either side.

        gradients go down → the update, by the host's cores → working weights come back

    The device keeps the weights that it computes with, and nothing else of the
    optimizer (ZeRO-Offload: Ren et al., ATC 2021, section 4). While one weight comes
    back, the next one is cast.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        settings: Settings,
        device: torch.device,
        make: Make | None = None,
    ) -> None:
        self._host = Host(device)
        self._down = HostGradients(self._host)
        super().__init__(parameters, settings, make)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], factor: float = 1.0) -> None:
        """One update; returns when the weights are on their way back."""
        scale(gradients.values(), factor)
        self._down.begin()
        for name, gradient in gradients.items():
            self._down.take(name, gradient)
        super().step(self._down.sums())
        self._down.begin()

    def _leaf(self, name: str, parameter: nn.Parameter) -> Leaf:
        part = local(parameter)
        there = self._host.empty(part.shape, torch.float32)
        value = nn.Parameter(there.copy_(part))
        return Leaf(name, parameter, value, master=True)

    def _publish(self) -> None:
        for leaf in self.leaves:
            self._host.up(leaf.value.detach(), local(leaf.parameter))
        self._host.arrived()
