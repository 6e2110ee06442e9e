"""The head of a decoder: logits and loss, and further tokens predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from profiles.models.spec import DecoderSpec
from profiles.models.steps import norm_step, stream
from profiles.operators import Element, Kind, Operator, Tensor


def logits_and_loss(entry: Tensor) -> list[Operator]:
    """The product with the vocabulary, and the cross-entropy."""
    logits = Tensor(name="logits_out", dims=("batch", "sequence", "vocab"))
    softmax = Tensor(
        name="softmax", dims=logits.dims, element=Element.FP32, internal=True
    )
    losses = Tensor(name="loss_out", dims=("batch", "sequence"), element=Element.FP32)
    return [
        Operator(
            name="logits",
            kind=Kind.MATMUL,
            function="matmul",
            inputs=(entry,),
            output=logits,
            columns=("vocab",),
            contracted="hidden",
            saves=(entry,),
        ),
        Operator(
            name="loss",
            kind=Kind.CROSS_ENTROPY,
            function="cross-entropy",
            inputs=(logits,),
            output=losses,
            saves=(softmax,),
            forward_elements=8,
            backward_elements=5,
            kernels=8,
        ),
    ]


def prediction(
    spec: DecoderSpec,
    number: int,
    source: Tensor,
    layer: Callable[[Tensor], list[Operator]],
) -> list[Operator]:
    """One more token predicted (DeepSeek-V3, section 2.2): the stream and the next
    token's embedding, normed, side by side through a product and one more *layer*.

    Embedding and head are the model's: their weights are counted there.
    """
    first, second, entry = (stream(name) for name in ("first", "second", "layer_in"))
    logits, loss = logits_and_loss(stream("norm_out"))
    last = layer(entry)
    operators = [
        norm_step(spec, "first_norm", source, first),
        norm_step(spec, "second_norm", source, second),
        Operator(
            name="join",
            kind=Kind.MATMUL,
            function="matmul",
            inputs=(first, second),
            output=entry,
            columns=("hidden",),
            contracted="pair",
            saves=(first, second),
        ),
        *last,
        norm_step(spec, "norm", last[-1].output, stream("norm_out")),
        replace(logits, shared=True),
        loss,
    ]
    return [_prefixed(one, f"mtp{number}_", source) for one in operators]


def _prefixed(operator: Operator, prefix: str, given: Tensor) -> Operator:
    """The same operator under another name, but for the tensor that is *given*."""

    def renamed(tensor: Tensor) -> Tensor:
        if tensor == given:
            return tensor
        return replace(tensor, name=prefix + tensor.name)

    return replace(
        operator,
        name=prefix + operator.name,
        inputs=tuple(map(renamed, operator.inputs)),
        output=renamed(operator.output),
        saves=tuple(map(renamed, operator.saves)),
    )
