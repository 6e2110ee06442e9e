"""Steps that layers of all decoders are made of: products, norms, residuals, MLPs."""

from __future__ import annotations

from profiles.models.graph import Element, Kind, Operator, Tensor
from profiles.models.spec import DecoderSpec

ROWS = ("batch", "sequence")
STREAM = (*ROWS, "hidden")


def stream(name: str) -> Tensor:
    """A tensor as wide as what layers hand on."""
    return Tensor(name=name, dims=STREAM)


def product(
    name: str,
    sources: tuple[Tensor, ...],
    output: Tensor,
    columns: tuple[str, ...],
    contracted: str,
    *,
    bias: bool = False,
    kind: Kind = Kind.MATMUL,
) -> Operator:
    """A matrix product with a weight, which keeps what it multiplies."""
    return Operator(
        name=name,
        kind=kind,
        function=kind.value,
        inputs=sources,
        output=output,
        columns=columns,
        contracted=contracted,
        bias=bias,
        saves=sources,
    )


def norm_step(
    spec: DecoderSpec, name: str, source: Tensor, output: Tensor, width: str = "hidden"
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
    )


def rotary_step(
    function: str, inputs: tuple[Tensor, ...], dims: tuple[str, ...], kernels: int
) -> Operator:
    """Queries and keys turned with their positions."""
    return Operator(
        name="rotary",
        kind=Kind.ELEMENTWISE,
        function=function,
        inputs=inputs,
        output=Tensor(name="rotary_out", dims=dims),
        forward_elements=2,
        backward_elements=2,
        kernels=kernels,
    )


def attention_core(source: Tensor, width: str, sinks: bool = False) -> Operator:
    """Softmax of the scores, times values; *width* is that of all heads' values."""
    return Operator(
        name="attention",
        kind=Kind.ATTENTION,
        function="attention",
        inputs=(source,),
        output=Tensor(name="attention_out", dims=(*ROWS, width)),
        vectors=1 if sinks else 0,
        vector_dim="heads" if sinks else "hidden",
        saves=(source,),  # and, by kernel, scores or row statistics
    )


def activation_function(spec: DecoderSpec) -> str:
    """The function between the two products of the MLP: gated ones have own names."""
    gated = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
    return (
        gated.get(spec.activation, spec.activation)
        if spec.gated_mlp
        else spec.activation
    )


def mlp_steps(
    spec: DecoderSpec,
    source: Tensor,
    width: str = "ffn",
    *,
    name: str = "mlp",
    kind: Kind = Kind.MATMUL,
    outer: str = "hidden",
) -> list[Operator]:
    """Up, activation and down over the rows of *source*, each *width* wide inside and
    *outer* outside."""
    rows, copies = source.dims[:-1], 2 if spec.gated_mlp else 1
    prefix = "" if name == "mlp" else f"{name}_"
    up = Tensor(name=f"{name}_up_out", dims=(*rows, width), copies=copies)
    active = Tensor(name=f"{prefix}activation_out", dims=(*rows, width))
    down = Tensor(name=f"{name}_down_out", dims=(*rows, outer))
    bias, columns = spec.mlp_bias, (width,) * copies
    return [
        product(f"{name}_up", (source,), up, columns, outer, bias=bias, kind=kind),
        Operator(
            name=f"{prefix}activation",
            kind=Kind.ELEMENTWISE,
            function=activation_function(spec),
            inputs=(up,),
            output=active,
            saves=(up,),
            forward_elements=copies + 1,
            backward_elements=2 * copies + 1,
        ),
        product(f"{name}_down", (active,), down, (outer,), width, bias=bias, kind=kind),
    ]
