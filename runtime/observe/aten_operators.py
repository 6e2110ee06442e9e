"""ATen operators of a listened step, as the operators that profiles have samples of.

    addmm, mm               matmul (rows, columns, contracted)
    scaled dot product      attention (batch, heads, kv_heads, seq_len, head_dim)
    _fused_adamw_ …         the optimizer, over a rank's parameters
    _foreach_norm, _mul_    gradient-norm

A product's backward is two products, that of its input and that of its weight; where
a backward has others beside those of the forward (recomputed ones), none is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.schedule import Kind
from profiles.samples import BACKWARD, FORWARD
from runtime.observe.rank_reports import Report
from runtime.trace import Operation

PRECISIONS: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
ATTENTION: Final = "_scaled_dot_product_flash_attention_for_cpu"
OPTIMIZERS: Final = {
    "adamw": "_fused_adamw_",
    "adam": "_fused_adam_",
    "sgd": "_fused_sgd_",
    "sgd-momentum": "_fused_sgd_",
}
NORMS: Final = ("_foreach_norm", "_foreach_mul_")
PRODUCTS: Final = ("addmm", "mm")
HEARD: Final = {
    *PRODUCTS,
    *NORMS,
    *OPTIMIZERS.values(),
    ATTENTION,
    f"{ATTENTION}_backward",
}
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heard:
    """The operator part of a sample key."""

    kind: str
    direction: str
    shape: Shape
    precision: str


Found = Mapping[Heard, Sequence[float]]


def operators(report: Report, optimizer: str) -> Found:
    """Seconds of each operator that one rank was heard to do, call by call."""
    found: dict[Heard, list[float]] = defaultdict(list)
    for heard, seconds in (
        *_attention(report.operations),
        *_products(report.operations),
        *_steps(report, optimizer),
    ):
        found[heard].append(seconds)
    return found


def _attention(operations: Sequence[Operation]) -> Iterator[tuple[Heard, float]]:
    for one in operations:
        if not one.name.startswith(ATTENTION) or one.dtype not in PRECISIONS:
            continue
        backward = one.name.endswith("_backward")
        query, key = one.shapes[1:3] if backward else one.shapes[:2]
        batch, heads, length, width = query
        yield (
            Heard(
                "attention",
                BACKWARD if backward else FORWARD,
                (batch, heads, key[1], length, width),
                PRECISIONS[one.dtype],
            ),
            one.seconds,
        )


def _products(operations: Sequence[Operation]) -> Iterator[tuple[Heard, float]]:
    """Products forwards; and backwards, the two halves of each in turn."""
    products = [
        (one, _product(one.shapes))
        for one in operations
        if one.name in PRODUCTS and one.dtype in PRECISIONS
    ]
    onward = [(one, shape) for one, shape in products if one.action == Kind.F]
    back = [(one, shape) for one, shape in products if one.action == Kind.B]
    for one, shape in onward:
        yield Heard("matmul", FORWARD, shape, PRECISIONS[one.dtype]), one.seconds
    if len(back) != 2 * len(onward):
        return
    halves: dict[tuple[Shape, str], list[float]] = defaultdict(list)
    for one, shape in back:
        halves[shape, one.dtype].append(one.seconds)
    for (rows, columns, contracted), dtype in {
        (shape, one.dtype): None for one, shape in onward
    }:
        of_input = halves.get(((rows, contracted, columns), dtype), [])
        of_weight = next(
            (
                halves[shape, dtype]
                for shape in ((columns, contracted, rows), (contracted, columns, rows))
                if (shape, dtype) in halves
            ),
            [],
        )
        key = Heard("matmul", BACKWARD, (rows, columns, contracted), PRECISIONS[dtype])
        for input_s, weight_s in zip(of_input, of_weight, strict=False):
            yield key, input_s + weight_s


def _steps(report: Report, optimizer: str) -> Iterator[tuple[Heard, float]]:
    """What a step does once, over all parameters of the rank: each step's sum."""
    shape = (report.parameters,)
    steps = len(report.listened)
    stepping = [one for one in report.operations if one.action == Kind.STEP]
    for kind, names in (
        (optimizer, (OPTIMIZERS[optimizer],)),
        ("gradient-norm", NORMS),
    ):
        calls = [one for one in stepping if one.name in names]
        each, rest = divmod(len(calls), steps or 1)
        if rest or {one.name for one in calls} != set(names):
            continue  # not in every step, as when nothing was clipped
        for step in range(steps):
            own = calls[step * each : (step + 1) * each]
            yield Heard(kind, FORWARD, shape, "fp32"), sum(one.seconds for one in own)


def _product(shapes: Sequence[Shape]) -> Shape:
    """(rows, columns, contracted) of mm(one, other) or addmm(bias, one, other)."""
    (rows, contracted), (_, columns) = shapes[-2:]
    return rows, columns, contracted
