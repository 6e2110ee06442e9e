"""What a step does once, over all parameters of a rank: optimizer, norm, sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiles.measure.timing.kernel import Kernel, Plain
from profiles.measure.timing.tasks import FORWARD, Device, Operation, Parameter, Tensor

CLIP = 1.0


def step_kernel(operation: Operation, device: Device) -> Kernel:
    """The kernel of one of `STEPS`; its operands stay, as they do in training."""
    function = STEPS[operation.kind](operation, device)
    return Plain(function, tuple, FORWARD, lasting=True)


def _parameters(operation: Operation, device: Device) -> list[Parameter]:
    import torch

    made = []
    for size in operation.pieces or operation.shape:
        parameter = torch.nn.Parameter(torch.full((size,), 0.5, device=device))
        parameter.grad = torch.full((size,), 0.1, device=device)
        made.append(parameter)
    return made


def _gradients(operation: Operation, device: Device) -> list[Tensor]:
    parameters = _parameters(operation, device)
    return [one.grad for one in parameters if one.grad is not None]


def _adamw(operation: Operation, device: Device) -> Callable[[], Any]:
    import torch

    parameters = _parameters(operation, device)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True).step


def _sgd(operation: Operation, device: Device) -> Callable[[], Any]:
    import torch

    parameters = _parameters(operation, device)
    momentum = 0.9 if operation.kind == "sgd-momentum" else 0.0
    return torch.optim.SGD(parameters, lr=1e-4, momentum=momentum, fused=True).step


def _accumulate(operation: Operation, device: Device) -> Callable[[], Any]:
    import torch

    gradients = _gradients(operation, device)
    fresh = [torch.full_like(one, 1e-3) for one in gradients]

    def add() -> None:
        for gradient, new in zip(gradients, fresh, strict=True):
            gradient.add_(new)

    return add


def _gradient_norm(operation: Operation, device: Device) -> Callable[[], Any]:
    import torch

    gradients = _gradients(operation, device)

    def clip() -> None:
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, (CLIP / (norm + 1e-6)).clamp(max=1.0))

    return clip


def _zero(operation: Operation, device: Device) -> Callable[[], Any]:
    import torch

    gradients = _gradients(operation, device)
    return lambda: torch._foreach_zero_(gradients)


def _host_copy(operation: Operation, device: Device) -> Callable[[], Any]:
    """From the device to the host, and back."""
    import torch

    (size_bytes,) = operation.shape
    there = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    here = torch.zeros(size_bytes, dtype=torch.uint8)
    if device.type == "cuda":
        here = here.pin_memory()

    def copy() -> None:
        here.copy_(there, non_blocking=True)
        there.copy_(here, non_blocking=True)

    return copy


STEPS: dict[str, Callable[[Operation, Device], Callable[[], Any]]] = {
    "adamw": _adamw,
    "adam": _adamw,
    "sgd": _sgd,
    "sgd-momentum": _sgd,
    "accumulate": _accumulate,
    "gradient-norm": _gradient_norm,
    "zero-gradient": _zero,
    "host-copy": _host_copy,
}
