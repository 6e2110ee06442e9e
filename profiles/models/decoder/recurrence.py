"""Mixers of tokens by a recurrence as operators, in place of attention.

    mixer_in    what the recurrence reads, gates and step sizes: one product
    conv        causal convolution of a few tokens, channel by channel, and SiLU
    scan        the recurrence, chunk by chunk: products inside, states between
    mixer_norm  RMS norm of what comes out, times SiLU of the gate
    mixer_out   back to the width of the stream

mamba-2      Dao and Gu, arXiv 2405.21060, section 7 and figure 6 (right)
gated-delta  Yang et al., arXiv 2412.06464, section 3.4 and figure 1
linear       MiniMax-01, arXiv 2501.08313, section 2.2: no convolution
mamba-1      Gu and Dao, arXiv 2312.00752, section 3.4: step sizes, B and C come by two
             narrow products from the convolution, and the gate is inside the scan

Backward takes from the first product's output what the convolution read and the gate
(mamba_ssm, `MambaSplitConv1dScanCombinedFn`), and runs the convolution again. Gated
delta nets keep what it made, and a row of the chunk's inverse for each token and head
(flash-linear-attention, `ChunkGatedDeltaRuleFunction`).
"""

from __future__ import annotations

from typing import Final

from profiles.models.graph import (
    ROWS,
    Kind,
    Operator,
    Tensor,
    norm_step,
    product,
    stream,
)
from profiles.models.spec import DecoderSpec, RecurrenceSpec

VALUE, KEY, HEADS = "mixer_value", "mixer_key", "mixer_heads"
COLUMNS: Final = {  # of the first product, side by side
    "mamba-1": (VALUE, VALUE),
    "mamba-2": (VALUE, VALUE, KEY, KEY, HEADS),
    "gated-delta": (KEY, KEY, VALUE, VALUE, HEADS, HEADS),
    "linear": (KEY, KEY, VALUE, VALUE),
}
MIXED: Final = {  # of them what the recurrence goes through
    "mamba-1": (VALUE,),
    "mamba-2": (VALUE, KEY, KEY),
    "gated-delta": (KEY, KEY, VALUE),
    "linear": (KEY, KEY, VALUE),
}
# Widths laid side by side, which lie over tp as their parts do.
JOINED: Final = frozenset("+".join(one) for one in (*COLUMNS.values(), *MIXED.values()))
# Vectors a head: decay and bias of the step size, of mamba-2 also what passes by.
OF_HEADS: Final = {"mamba-1": 0, "mamba-2": 3, "gated-delta": 2, "linear": 0}
# Host work in ordinary operators [assumed]: a scan is some five kernels, of Triton.
LAUNCHES: Final = 3.0


def recurrence_extents(spec: RecurrenceSpec) -> dict[str, int]:
    """The dimensions that a recurrence adds."""
    return {
        VALUE: spec.heads * spec.head_dim,
        KEY: spec.groups * spec.state,
        HEADS: spec.heads,
        "mixer_groups": spec.groups,
        "mixer_head_dim": spec.head_dim,
        "mixer_state": spec.state,
        "mixer_chunk": spec.chunk,
        "dt_rank": spec.dt_rank,
        "dt_bc": spec.dt_rank + 2 * spec.state,
        **{one: _width(spec, one) for one in JOINED},
    }


def _width(spec: RecurrenceSpec, joined: str) -> int:
    sizes = {VALUE: spec.heads * spec.head_dim, HEADS: spec.heads}
    return sum(sizes.get(one, spec.groups * spec.state) for one in joined.split("+"))


def recurrence(
    spec: DecoderSpec, mixer: RecurrenceSpec, entry: Tensor, norm: Tensor
) -> list[Operator]:
    """From the input norm to the output projection."""
    columns, mixed = COLUMNS[mixer.kind], "+".join(MIXED[mixer.kind])
    wide = Tensor(name="mixer_in_out", dims=(*ROWS, "+".join(columns)))
    operators = [
        norm_step(spec, "input_norm", entry, norm),
        product("mixer_in", (norm,), wide, columns, "hidden"),
    ]
    read = wide
    if mixer.conv_width:
        read = Tensor(name="conv_out", dims=(*ROWS, mixed))
        operators.append(_convolution(mixer, wide, read, mixed))
    steps = _steps(spec, read) if mixer.kind == "mamba-1" else []
    scan = _scan(mixer, wide, read, steps)
    operators += [*steps, scan]
    last = scan.output
    if mixer.kind != "mamba-1":
        operators.append(_gated_norm(mixer, last, wide))
        last = operators[-1].output
    out = stream("mixer_out_out")
    return [*operators, product("mixer_out", (last,), out, ("hidden",), VALUE)]


def _convolution(
    mixer: RecurrenceSpec, wide: Tensor, output: Tensor, mixed: str
) -> Operator:
    return Operator(
        name="conv",
        kind=Kind.ELEMENTWISE,
        function="causal-conv",
        inputs=(wide,),
        output=output,
        vectors=mixer.conv_width + mixer.conv_bias,
        vector_dim=mixed,
        saves=(wide,),
        forward_elements=2,  # read x, write y
        backward_elements=3,  # read x and dy, write dx
    )


def _steps(spec: DecoderSpec, read: Tensor) -> list[Operator]:
    """Mamba-1's step sizes, B and C of each token; the two latter are all channels'."""
    low = Tensor(name="dt_down_out", dims=(*ROWS, "dt_bc"))
    operators = [product("dt_down", (read,), low, ("dt_bc",), VALUE)]
    if spec.recurrence is not None and spec.recurrence.dt_norms:
        low = Tensor(name="dt_norm_out", dims=low.dims)
        before = operators[-1].output
        operators.append(norm_step(spec, "dt_norm", before, low, "dt_bc"))
    made = Tensor(name="dt_up_out", dims=(*ROWS, VALUE))
    return [
        *operators,
        product("dt_up", (low,), made, (VALUE,), "dt_rank", bias=True),
    ]


def _scan(
    mixer: RecurrenceSpec, wide: Tensor, read: Tensor, steps: list[Operator]
) -> Operator:
    first = mixer.kind == "mamba-1"
    given = (steps[-1].output, *steps[-1].inputs) if steps else ()
    saves: tuple[Tensor, ...] = (wide,)
    if first:
        saves = (read, *given, wide)
    elif mixer.kind == "gated-delta":
        inverse = Tensor(
            name="scan_inverse", dims=(*ROWS, HEADS), copies=mixer.chunk, internal=True
        )
        saves = (read, wide, inverse)
    return Operator(
        name="scan",
        kind=Kind.SCAN,
        function=mixer.kind,
        inputs=tuple(dict.fromkeys((read, *given, wide))),
        output=Tensor(name="scan_out", dims=(*ROWS, VALUE)),
        vectors=mixer.state + 1 if first else OF_HEADS[mixer.kind],
        vector_dim=VALUE if first else HEADS,
        saves=saves,
        launches=LAUNCHES,
    )


def _gated_norm(mixer: RecurrenceSpec, source: Tensor, wide: Tensor) -> Operator:
    """RMS norm, of a gated delta net by heads with one weight for all of them."""
    return Operator(
        name="mixer_norm",
        kind=Kind.ELEMENTWISE,
        function="gated-rmsnorm",
        inputs=(source, wide),
        output=Tensor(name="mixer_norm_out", dims=source.dims),
        vectors=1,
        vector_dim="mixer_head_dim" if mixer.kind == "gated-delta" else VALUE,
        saves=(source, wide),
        forward_elements=3,  # read y and gate, write
        backward_elements=5,
    )
