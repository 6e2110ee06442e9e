"""Operators as kernels: which function a kind is, and which gradients it makes.

What a step does once goes over all parameters of a rank: optimizer, norm, sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from profiles.errors import Unsupported
from profiles.measure.timing.fsdp_unit import Unit
from profiles.measure.timing.kernel import (
    EightBitProduct,
    Function,
    Kernel,
    Layer,
    Plain,
)
from profiles.measure.timing.operands import ACTIVATIONS, Arena, operands
from profiles.measure.timing.operator_functions import functions
from profiles.measure.timing.tasks import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    PRODUCTS,
    Device,
    DType,
    Operands,
    Operation,
    Parameter,
    Tensor,
)
from profiles.samples import UNIT_KINDS

CLIP = 1.0


def step_kernel(operation: Operation, device: Device) -> Kernel:
    """The kernel of one of `STEPS`; its operands stay, as they do in training."""
    import torch

    made = []
    for size in operation.pieces or operation.shape:
        parameter = torch.nn.Parameter(torch.full((size,), 0.5, device=device))
        parameter.grad = torch.full((size,), 0.1, device=device)
        made.append(parameter)
    function = STEPS[operation.kind](made)
    return Plain(function, tuple, FORWARD, lasting=True)


def _gradients(parameters: list[Parameter]) -> list[Tensor]:
    return [one.grad for one in parameters]


def _adamw(parameters: list[Parameter]) -> Callable[[], Any]:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-4, fused=True).step


def _sgd(parameters: list[Parameter], momentum: float = 0.0) -> Callable[[], Any]:
    import torch

    return torch.optim.SGD(parameters, lr=1e-4, momentum=momentum, fused=True).step


def _accumulate(parameters: list[Parameter]) -> Callable[[], Any]:
    import torch

    gradients = _gradients(parameters)
    fresh = [torch.full_like(one, 1e-3) for one in gradients]

    def add() -> None:
        for gradient, new in zip(gradients, fresh, strict=True):
            gradient.add_(new)

    return add


def _gradient_norm(parameters: list[Parameter]) -> Callable[[], Any]:
    import torch

    gradients = _gradients(parameters)

    def clip() -> None:
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, (CLIP / (norm + 1e-6)).clamp(max=1.0))

    return clip


def _zero(parameters: list[Parameter]) -> Callable[[], Any]:
    import torch

    return partial(torch._foreach_zero_, _gradients(parameters))


STEPS: dict[str, Callable[[list[Parameter]], Callable[[], Any]]] = {
    "adamw": _adamw,
    "adam": _adamw,
    "sgd": _sgd,
    "sgd-momentum": partial(_sgd, momentum=0.9),
    "accumulate": _accumulate,
    "gradient-norm": _gradient_norm,
    "zero-gradient": _zero,
}


def _host_copy(size_bytes: int, device: Device) -> Kernel:
    """From the device to the host, and back."""
    import torch

    there = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    here = torch.zeros(size_bytes, dtype=torch.uint8)
    if device.type == "cuda":
        here = here.pin_memory()

    def copy() -> None:
        here.copy_(there, non_blocking=True)
        there.copy_(here, non_blocking=True)

    return Plain(copy, tuple, FORWARD, lasting=True)


DTYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
}


class Kernels:
    """Makes kernels on one device; each dtype has its own arena, and a blank one."""

    def __init__(self, device: str, arena_bytes: float, cache_bytes: float) -> None:
        import torch

        self.device = torch.device(device)
        self.arena_bytes, self.cache_bytes = arena_bytes, cache_bytes
        self.functions = functions()
        self._arenas: dict[tuple[str, bool], Arena] = {}

    def arena(self, precision: str = "fp32", *, blank: bool = False) -> Arena:
        import torch

        name = DTYPES[precision]
        if (name, blank) not in self._arenas:
            dtype: DType = getattr(torch, name)
            size = int(self.arena_bytes // dtype.itemsize)
            self._arenas[name, blank] = Arena(size, dtype, self.device, blank=blank)
        return self._arenas[name, blank]

    def kernel(self, operation: Operation) -> Kernel:
        """The kernel of *operation*, whichever of its passes that is.

        Raises Unsupported for a kind without one.
        """
        if operation.kind in STEPS:
            return step_kernel(operation, self.device)
        if operation.kind == "host-copy":
            return _host_copy(operation.shape[0], self.device)
        if operation.kind in UNIT_KINDS:
            return Unit(operation, self.arena())
        if (operation.kind, operation.direction) == ("residual", BACKWARD):
            return self._joined(operation)
        arena = self.arena(operation.precision)
        if operation.precision == "fp8":
            import torch

            return EightBitProduct(operation, arena, self.cache_bytes, torch.bfloat16)
        make = operands(operation, arena)
        return Layer(
            self._function(operation),
            make,
            _passes(operation.kind, make()),
            lambda made: _gradient(made, arena),
            arena,
            self.cache_bytes,
            activations=ACTIVATIONS.get(operation.kind, 1),
            within=in_tf32 if operation.precision == "tf32" else nullcontext,
        )

    def _function(self, operation: Operation) -> Function:
        kind = operation.kind
        for name in (operation.variant, f"{kind}-{operation.variant}", kind):
            if name in self.functions:
                return self.functions[name]
        raise Unsupported(
            f"operators of kind {kind!r} are not measured; "
            f"{', '.join(self.functions)} are"
        )

    def _joined(self, operation: Operation) -> Kernel:
        """A residual hands its gradient on twice, and two gradients become one."""
        deal = self.arena(operation.precision, blank=True).deal
        shape = operation.shape
        return Plain(
            lambda one, other: one.add_(other),
            lambda: (deal(*shape), deal(*shape)),
            BACKWARD,
        )


@contextmanager
def in_tf32() -> Iterator[None]:
    """32-bit products in tf32, as `runtime.models.precision` lets them be; the engine's
    thread asks the same flag in a backward."""
    import torch

    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32 = before


def _passes(kind: str, operands: Operands) -> dict[str, tuple[int, ...]]:
    """Directions, and the places of the operands that each makes a gradient for."""
    wanted = tuple(
        place
        for place, one in enumerate(operands)
        if getattr(one, "requires_grad", False)
    )
    if kind == "residual":
        return {}
    if kind in PRODUCTS:
        return {BACKWARD_INPUT: wanted[:1], BACKWARD_WEIGHT: wanted[1:]}
    return {BACKWARD: wanted}


def _gradient(made: Tensor, arena: Arena) -> Tensor:
    """What comes back for *made*: for a loss, one."""
    return made.new_ones(()) if made.dim() == 0 else arena.deal(*made.shape)
