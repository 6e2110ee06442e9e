"""Operators as kernels: which function a kind is, and which gradients it makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from profiles.errors import Unsupported
from profiles.measure.timing.buffers import Arena
from profiles.measure.timing.fp8 import EightBitProduct
from profiles.measure.timing.fsdp_unit import Unit
from profiles.measure.timing.kernel import Function, Kernel, Layer, Operands, Plain
from profiles.measure.timing.operands import ACTIVATIONS, operands
from profiles.measure.timing.operator_functions import functions
from profiles.measure.timing.optimizer_step import STEPS, step_kernel
from profiles.measure.timing.tasks import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    PRODUCTS,
    DType,
    Operation,
    Tensor,
)
from profiles.samples import UNIT_KINDS

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
    """32-bit products in tf32, as `runtime.models.precision` lets them be; the
    engine's thread
    asks the same flag in a backward."""
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
