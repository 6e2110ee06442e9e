"""A model with low-rank adapters: any graph → the graph of its fine-tuning (LoRA).

Beside each adapted product y = W x there is y + B (A x), A with `rank` rows (Hu et al.,
2021, section 4.1). All other weights are frozen: no gradient, no optimizer state, and
no product for their gradient, so nothing is kept for one. What the layers below need
still flows through them.

`Adapters`: low-rank adapters, all that is trained of a model (Hu et al., 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiles.errors import InvalidSpec
from profiles.models.graph import (
    ROWS,
    Block,
    Kind,
    ModelGraph,
    Operator,
    Tensor,
    product,
)

LINEAR_LAYERS = ("qkv", "projection", "mlp_up", "mlp_down")
ATTENTION = ("qkv", "projection")
QUERY_KEY_VALUE = ("qkv",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Beside each matrix product in *targets*, by operator name, two narrow ones:
    the input → `rank` → the output. Every other weight is frozen."""

    rank: int
    targets: tuple[str, ...] = LINEAR_LAYERS

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.targets:
            raise InvalidSpec(
                f"adapters have a rank of at least 1 and at least one target, got "
                f"rank {self.rank} on {', '.join(self.targets) or 'none'}"
            )


_SUMMED = 3.0  # elements: two summands read, the sum written


def with_adapters(graph: ModelGraph, adapters: Adapters) -> ModelGraph:
    """*graph* with its weights frozen and *adapters* beside their targets.

    Raises InvalidSpec for a target that no layer of the graph has.
    """
    known = {
        item.name
        for block in graph.distinct()
        for item in block.operators
        if _adaptable(item)
    }
    for target in adapters.targets:
        if target not in known:
            raise InvalidSpec(
                f"{graph.name} has no matrix product {target!r} to adapt; it has "
                f"{', '.join(sorted(known))}"
            )
    blocks = tuple((_adapted(one, adapters), count) for one, count in graph.blocks)
    return replace(graph, blocks=blocks)


def _adaptable(operator: Operator) -> bool:
    return operator.kind is Kind.MATMUL and not operator.convolves


def _adapted(block: Block, adapters: Adapters) -> Block:
    operators: list[Operator] = []
    for one in block.operators:
        operators.append(_frozen(one))
        if _adaptable(one) and one.name in adapters.targets:
            operators += _beside(one, block)
    return replace(
        block,
        operators=tuple(operators),
        extents={**block.extents, "rank": adapters.rank},
    )


def _frozen(operator: Operator) -> Operator:
    """The same step without a gradient of its weight. A product keeps its input for
    that alone; below a table there is nothing that needs a gradient."""
    if not operator.has_weight:
        return replace(operator, frozen=True)
    below = operator.kind is not Kind.EMBEDDING
    return replace(
        operator,
        frozen=True,
        saves=(),
        backward_elements=operator.backward_elements if below else 0.0,
    )


def _beside(base: Operator, block: Block) -> tuple[Operator, ...]:
    """The adapter of a product, whose output it adds to in place."""
    source, name = base.inputs[0], base.name
    made = sum(block.extents[width] for width in base.columns)
    read = block.extents[base.contracted] if base.contracted else made
    rows = base.rows
    narrow = Tensor(name=f"{name}_lora_a_out", dims=(*ROWS, "rank"), copies=rows)
    wide = replace(base.output, name=f"{name}_lora_b_out")
    down = product(
        f"{name}_lora_a", (source,), narrow, ("rank",), base.contracted or ""
    )
    up = product(f"{name}_lora_b", (narrow,), wide, base.columns, "rank")
    return (
        replace(down, rows=rows),
        replace(up, rows=rows),
        Operator(
            name=f"{name}_lora_sum",
            kind=Kind.ELEMENTWISE,
            function="residual",
            inputs=(base.output, wide),
            output=base.output,
            forward_elements=_SUMMED,
            # The two gradients of the input, in elements of the output.
            backward_elements=_SUMMED * read / made,
        ),
    )
