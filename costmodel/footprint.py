"""`Footprint`: what a framework keeps in memory beyond what the mathematics needs.

Like `Software`, it belongs to a framework of a generation, never to a model or a run.
`data/footprints.json` holds them with their sources; a framework that is not in it has
none of these habits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from profiles.precision import Format, Precision

Array = NDArray[Any]
FOOTPRINTS: Final = Path(__file__).parent / "data" / "footprints.json"
# How gradients of 16-bit training are held → bytes a parameter of all gradients, and
# of the shard's that the step copies. Else as the precision policy says.
GRADIENTS: Final = {
    "half": (2.0, 0.0),
    "half-then-fp32": (2.0, 4.0),  # the shard's are copied to fp32 for the step
    "half-and-fp32": (6.0, 0.0),
}
AS_ASKED: Final = "policy"
# Of a framework without published peaks: the 80 % quantile of |measured - estimated|,
# over 1.28 standard deviations (`memory.SPREAD`), of sources whose framework nothing
# was fitted to.
LEFT_OUT: Final = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Habits of a framework.

    `fp16_gradients` and `bf16_gradients`: how gradients are held, one of GRADIENTS.
    `shards_are_masters`: ZeRO's shard is the fp32 weight, with no 16-bit one beside it.
    `half_logits` and `fp32_logits`: copies of the logits that are alive beside the
    saved softmax (in fp32, or `half_softmax`) when the loss turns into its gradient;
    `split_logits`: fp32 copies more where tensor parallelism splits the vocabulary;
    with `whole_logits` every tensor-parallel rank has all of them.
    `score_bytes`: kept of a score beside the softmax, by a fused softmax.
    `keeps_gathered`: under sequence parallelism products keep their gathered input.
    `keeps_gate`: a gated MLP runs operator by operator and keeps the activated gate.
    `saves_quantised`: what a product keeps is in the product's format; so is what waits
    for the gradients of weights, where backward is split.
    `dummy_gradients`: a 16-bit gradient of one layer stays beside the fused ones.
    `flat_states`: weights, and what the optimizer keeps, are single tensors made once,
    which leave no fragments.
    `step_bytes`: a parameter of the optimizer's shard, of the step's temporaries.
    `bucket_elements`: of each buffer that gradients and parameters are exchanged in.
    `live_parameters`: ZeRO-3 gathers weight by weight, and keeps no more than these.
    `pipeline_buffers`: activations that a pipeline holds over those that 1F1B needs.
    `memory_spread`: how much less is known of its peaks than of those of frameworks
    that runs were measured on: a factor of `memory.SPREAD`; and so many of these
    `deviations` are left free where a layout is to fit with more than even odds.
    """

    fp16_gradients: str = AS_ASKED
    bf16_gradients: str = AS_ASKED
    shards_are_masters: bool = False
    half_softmax: bool = False
    half_logits: float = 0.0
    fp32_logits: float = 0.0
    split_logits: float = 0.0
    whole_logits: bool = False
    score_bytes: float = 0.0
    keeps_gathered: bool = False
    keeps_gate: bool = False
    saves_quantised: bool = False
    dummy_gradients: bool = False
    flat_states: bool = False
    step_bytes: float = 0.0
    bucket_elements: float = 0.0
    live_parameters: float | None = None
    pipeline_buffers: float = 1.0
    memory_spread: float = 1.0
    deviations: float = 0.0
    source: str = ""

    def gradient_bytes(self, precision: Precision) -> tuple[float, float]:
        """Bytes of a parameter's gradients: of all, and of the shard's step copies.

        A format that was asked for, or 32-bit training, is taken as it is.
        """
        half = precision.parameter
        asked = precision.gradient is not Format.FP32 or precision.reduced_copy
        if asked or half not in (Format.FP16, Format.BF16):
            return precision.gradient_bytes, 0.0
        held = self.fp16_gradients if half is Format.FP16 else self.bf16_gradients
        return GRADIENTS.get(held, (precision.gradient_bytes, 0.0))

    def gradients(self, precision: Precision) -> str:
        """In which formats a parameter's gradients are held between micro-batches.

        >>> from profiles.precision import precision
        >>> PLAIN.gradients(precision("bf16"))
        'fp32'
        >>> Footprint(bf16_gradients="half-and-fp32").gradients(precision("bf16"))
        'bf16+fp32'
        """
        every, _ = self.gradient_bytes(precision)
        half = precision.parameter.value
        return {2.0: half, 6.0: f"{half}+fp32"}.get(every, "fp32")

    def as_asked(self) -> Footprint:
        """The same with gradients in the format that was asked for."""
        return replace(self, fp16_gradients=AS_ASKED, bf16_gradients=AS_ASKED)

    def logits_bytes(self, precision: Precision, tp: Array) -> Array:
        """Bytes a logit beside the saved softmax, at the loss."""
        half = self.half_logits * precision.activation.bytes
        whole = self.fp32_logits + np.where(tp > 1, self.split_logits, 0.0)
        return np.asarray(half + whole * Format.FP32.bytes)


PLAIN: Final = Footprint()
UNKNOWN: Final = Footprint(memory_spread=LEFT_OUT)  # of a framework nobody knows


@lru_cache(maxsize=1)
def footprints() -> dict[str, Footprint]:
    """Every framework's habits, by the framework's name."""
    return msgspec.json.decode(FOOTPRINTS.read_bytes(), type=dict[str, Footprint])
