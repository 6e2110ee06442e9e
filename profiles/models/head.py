"""The head of a decoder: logits and loss, and further tokens predicted.

Steps that layers of all decoders are made of: the stream, norms and residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from profiles.models.graph import Element, Kind, Operator, Tensor
from profiles.models.spec import DecoderSpec

STREAM = ("batch", "sequence", "hidden")


def stream(name: str) -> Tensor:
    """A tensor as wide as what layers hand on."""
    return Tensor(name=name, dims=STREAM)


def norm_step(
    spec: DecoderSpec,
    name: str,
    source: Tensor,
    output: Tensor,
    width: str = "hidden",
) -> Operator:
    """The model's kind of norm, over *width*."""
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function=spec.norm,
        inputs=(source,),
        output=output,
        vectors=2 if spec.norm == "layernorm" and spec.norm_bias else 1,
        vector_dim=width,
        saves=(source,),
        forward_elements=2,  # read x, write y
        backward_elements=3,  # read x and dy, write dx
    )


def residual_step(
    spec: DecoderSpec, name: str, branch: Tensor, skip: Tensor
) -> Operator:
    """*branch* added to *skip*, with dropout where the model has it."""
    mask = Tensor(name=f"{name}_mask", dims=STREAM, element=Element.MASK, internal=True)
    dropout = spec.dropout > 0
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        function="dropout-residual" if dropout else "residual",
        inputs=(branch, skip),
        output=stream(f"{name}_out"),
        saves=(mask,) if dropout else (),
        forward_elements=3.5 if dropout else 3,  # branch, skip, sum and its mask
        backward_elements=2.5 if dropout else 1,
        kernels=1,
    )


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
