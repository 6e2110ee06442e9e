"""`profiles.measure.timing.registry`: each kind computes what its key says, and is
timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from profiles.errors import Unsupported
from profiles.measure.plan import operations
from profiles.measure.timing.clock import Clock
from profiles.measure.timing.kernel import (
    EightBitProduct,
    Layer,
    saved_bytes,
    scaled_product,
)
from profiles.measure.timing.operator_functions import KINDS, functions
from profiles.measure.timing.registry import Kernels
from profiles.measure.timing.tasks import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Operation,
)
from profiles.models.spec import DecoderSpec
from profiles.units import MiB
from tests.support.small_jobs import BIASED, DROPPING, GPT, LLAMA, MIXTURE, job

SPECS = {"g": GPT, "l": LLAMA, "d": DROPPING, "m": MIXTURE, "b": BIASED}


class Alone:
    """One rank: it waits for nobody."""

    def barrier(self) -> None:
        pass

    def largest(self, *values: float) -> tuple[float, ...]:
        return values


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels("cpu", 4 * MiB, 1 * MiB)


@pytest.fixture
def clock() -> Clock:
    return Clock(Alone(), "cpu", own=True, budget_s=60.0)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp8"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_operation_of_a_plan_can_be_timed(
    kernels: Kernels, clock: Clock, spec: DecoderSpec, precision: str
) -> None:
    plan = operations(job(spec), parts=(1, 2), precisions=(precision,), most_tokens=64)
    for operation in plan:
        seconds = kernels.kernel(operation).visit(clock, 2)
        assert seconds[operation.direction] >= 0, operation


def test_every_kind_has_a_function() -> None:
    """The plan knows kinds without torch; what is called stands elsewhere."""
    by_variant = {"qk-norm"}  # called by the name of its norm
    assert {*KINDS} - by_variant <= functions().keys()


def test_a_kind_without_a_clock_is_refused(kernels: Kernels) -> None:
    with pytest.raises(Unsupported, match="'conv' are not measured"):
        kernels.kernel(Operation(kind="conv", direction=FORWARD, shape=(2, 2)))


@pytest.mark.parametrize(
    ("kind", "shape", "saved"),
    [
        ("matmul", (32, 16, 8), 32 * 8 * 4),  # its input; the weight stays anyway
        ("gelu", (32, 16), 32 * 16 * 4),
        ("swiglu", (32, 16), 2 * 32 * 16 * 4),
        ("layernorm", (32, 16), 32 * 16 * 4 + 2 * 32 * 4),  # and mean, deviation
        ("cross-entropy", (32, 16), 32 * 16 * 4 + 4),  # and the weight of targets
    ],
)
def test_saved_bytes_are_observed(
    kernels: Kernels, kind: str, shape: tuple[int, ...], saved: int
) -> None:
    kernel = kernels.kernel(Operation(kind=kind, direction=FORWARD, shape=shape))
    assert saved_bytes(kernel) == saved


def test_half_a_products_backward_makes_half_the_gradients(kernels: Kernels) -> None:
    operation = Operation(
        kind="matmul", direction=FORWARD, shape=(8, 6, 4), variant="bias"
    )
    kernel = kernels.kernel(operation)
    assert isinstance(kernel, Layer)
    assert kernel.passes == {"backward-input": (0,), "backward-weight": (1, 2)}


def test_operands_are_dealt_cold(kernels: Kernels) -> None:
    """Two calls share no operand until the arena has been dealt out."""
    kernel = kernels.kernel(
        Operation(kind="matmul", direction=FORWARD, shape=(32, 16, 8))
    )
    assert isinstance(kernel, Layer)
    places = [one.data_ptr() for _ in range(16) for one in kernel.operands()]
    assert len(set(places)) == len(places)


def test_what_is_timed_leaves_the_numbers_as_they_are(
    kernels: Kernels, clock: Clock
) -> None:
    """Times of some operators hang on them."""
    before = kernels.arena().block.clone()
    for operation in operations(
        job(GPT), parts=(1,), precisions=("fp32",), most_tokens=64
    ):
        kernels.kernel(operation).visit(clock, 2)
    assert kernels.arena().block.equal(before)
    assert not kernels.arena(blank=True).block.any()


class Slow(Clock):
    """All that is timed took a second."""

    def timed(self, work: Callable[[], object]) -> float:
        work()
        return 1.0


def test_a_brief_call_is_rehearsed_on_operands_of_its_own(
    kernels: Kernels, clock: Clock
) -> None:
    kernel = kernels.kernel(Operation(kind="gelu", direction=FORWARD, shape=(32, 16)))
    assert isinstance(kernel, Layer)
    function, given = kernel.function, list[int]()

    def seen(one: Any) -> Any:
        given.append(one.data_ptr())
        return function(one)

    kernel.function = seen
    kernel.visit(clock, 2)
    assert len(set(given)) == len(given) == 3
    slow = Slow(Alone(), "cpu", own=True, budget_s=60.0)
    kernel.visit(slow, 2)  # which only then is known to be long
    given.clear()
    kernel.visit(slow, 2)
    assert len(given) == 2


def test_attention_of_packed_and_of_separate_tensors_agree() -> None:
    import torch

    known: dict[str, Callable[..., torch.Tensor]] = functions()
    torch.manual_seed(0)
    packed = torch.randn(2, 16, (4 + 2 * 2) * 8)
    groups = packed.unflatten(-1, (2, 4, 8))
    query = groups[:, :, :, :2].flatten(2, 3)
    key, value = groups[:, :, :, 2], groups[:, :, :, 3]
    whole = known["attention"](packed, 2, 8)
    parts = known["attention-separate"](query, key, value)
    assert whole.shape == (2, 16, 4 * 8)
    assert torch.allclose(whole, parts)


def test_8_bit_products_are_those_of_a_layer_in_whole_blocks(kernels: Kernels) -> None:
    import torch

    operation = Operation(
        kind="matmul", direction=FORWARD, shape=(40, 24, 72), precision="fp8"
    )
    kernel = kernels.kernel(operation)
    assert isinstance(kernel, EightBitProduct)
    for direction, left, right in (
        (FORWARD, (48, 80), (32, 80)),
        (BACKWARD_INPUT, (48, 32), (80, 32)),
        (BACKWARD_WEIGHT, (32, 48), (80, 48)),
    ):
        ((one, other),) = kernel.operands(direction)
        assert (one.shape, other.shape) == (left, right)
        ones = torch.ones(())
        made = scaled_product(one, other, (ones, ones), made=torch.float32, exact=True)
        true = one.float() @ other.float().t()
        assert torch.isfinite(true).all()
        assert torch.allclose(made, true, rtol=1e-4, atol=1e-4)
    experts = replace(operation, kind="grouped-matmul", shape=(34, 3, 16, 32))
    grouped = kernels.kernel(experts)
    assert isinstance(grouped, EightBitProduct)
    assert grouped.sizes == [(16, 16, 32)] * 3


def test_tf32_is_for_as_long_as_it_is_timed(kernels: Kernels, clock: Clock) -> None:
    import torch

    operation = Operation(
        kind="matmul", direction=FORWARD, shape=(8, 6, 4), precision="tf32"
    )
    kernel = kernels.kernel(operation)
    assert isinstance(kernel, Layer)
    inside, seen = kernel.function, set()

    def watched(*operands: torch.Tensor) -> torch.Tensor:
        seen.add(torch.backends.cuda.matmul.allow_tf32)
        made: torch.Tensor = inside(*operands)
        return made

    kernel.function = watched
    kernel.visit(clock, 1)
    assert seen == {True}
    assert not torch.backends.cuda.matmul.allow_tf32
