"""Steps that layers of all decoders are made of: the stream, norms and residuals."""

from __future__ import annotations

from profiles.models.spec import DecoderSpec
from profiles.operators import Element, Kind, Operator, Tensor

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
