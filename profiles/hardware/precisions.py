"""Number formats: what a matrix product runs in, and the bytes each state keeps.

Four conventions of bytes per parameter are in use; `state_bytes` names each part so
that a report can say which one it counted (16, 18 or 20 with mixed precision).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from profiles.errors import InvalidSpec, UnknownName


class Format(StrEnum):
    """How one number is stored or multiplied."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"

    @property
    def bytes(self) -> float:
        return _FORMAT_BYTES[self]


_FORMAT_BYTES = {
    Format.FP32: 4.0,
    Format.TF32: 4.0,
    Format.FP16: 2.0,
    Format.BF16: 2.0,
    Format.FP8: 1.0,
    Format.MXFP8: 1.0 + 1 / 32,  # one 8-bit scale for 32 values (OCP MX 1.0)
    Format.NVFP4: 0.5 + 1 / 16,  # one 8-bit scale for 16 values
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A training precision: what is multiplied, kept, accumulated and stepped in.

    `master` is the separate fp32 copy of 16-bit weights (None where the weights
    themselves are fp32). `reduced_copy` is the 16-bit gradient kept *beside* the
    fp32 one (DeepSpeed). `cast_cache` is autocast's transient 16-bit weight copy.
    """

    name: str
    matmul: Format
    activation: Format
    parameter: Format
    gradient: Format
    master: Format | None
    reduced_copy: Format | None = None
    cast_cache: Format | None = None

    @property
    def master_bytes(self) -> float:
        return self.master.bytes if self.master else 0.0

    @property
    def frozen_bytes(self) -> float:
        """Bytes of a weight that is not trained: kept as it is multiplied, in 16 bits
        (fp32 where everything is)."""
        return self.activation.bytes

    @property
    def gradient_bytes(self) -> float:
        """Bytes of all gradient copies, per parameter."""
        return self.gradient.bytes + (
            self.reduced_copy.bytes if self.reduced_copy else 0.0
        )

    def state_bytes(self, moments: int = 2) -> float:
        """Bytes per parameter: weight, gradient, master copy and fp32 moments.

        >>> precision("bf16", gradient="bf16").state_bytes()
        16.0
        >>> precision("bf16", gradient="fp32").state_bytes()
        18.0
        """
        return (
            self.parameter.bytes
            + self.gradient_bytes
            + self.master_bytes
            + moments * Format.FP32.bytes
        )


PRECISIONS = (
    *("fp32", "tf32", "amp-fp16", "amp-bf16", "fp16", "bf16"),
    *("fp8", "mxfp8", "nvfp4"),
    *("fp8-s2", "fp8-wang"),
)
# Of S2FP8 (Cambier et al., ICLR 2020): a tensor's mean and largest logarithm.
SHIFTED = "fp8-s2"
# Of Wang et al. (NeurIPS 2018): weights are updated in 16 bits, and there is no master.
SIXTEEN_BIT_UPDATE = "fp8-wang"
GRADIENT_FORMATS = ("fp32", "fp16", "bf16", "bf16+fp32")


def precision(name: str, *, gradient: str = "fp32") -> Precision:
    """The policy called *name*, accumulating 16-bit training's gradients in *gradient*.

    ``bf16+fp32`` keeps a 16-bit gradient beside the fp32 one: 20 bytes per parameter.

    Raises UnknownName, or InvalidSpec for a gradient format that does not exist.
    """
    if name not in PRECISIONS:
        raise UnknownName("precision", name, PRECISIONS)
    if gradient not in GRADIENT_FORMATS:
        raise InvalidSpec(
            f"gradient format {gradient!r} is not one of {', '.join(GRADIENT_FORMATS)}"
        )
    matmul = (
        Format.FP8 if name.startswith("fp8-") else Format(name.removeprefix("amp-"))
    )
    if name in ("fp32", "tf32") or name.startswith("amp-"):
        cast = matmul if name.startswith("amp-") else None
        return Precision(
            name=name,
            matmul=matmul,
            activation=cast or Format.FP32,
            parameter=Format.FP32,
            gradient=Format.FP32,
            master=None,
            cast_cache=cast,
        )
    half = Format.FP16 if name in ("fp16", SIXTEEN_BIT_UPDATE) else Format.BF16
    both = gradient == "bf16+fp32"
    # A 16-bit gradient has the format of the run: there is no fp16 run with bf16 ones.
    return Precision(
        name=name,
        matmul=matmul,
        activation=half,
        parameter=half,
        gradient=Format.FP32 if both or gradient == "fp32" else half,
        master=None if name == SIXTEEN_BIT_UPDATE else Format.FP32,
        reduced_copy=half if both else None,
    )
