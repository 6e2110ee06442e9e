"""`ZeroPlus`: ZeRO++, three choices that send less between nodes under ZeRO-3.

quantized_weights      forward's gather carries blocks of INT8                    (qwZ)
hpz_partition_size     so many neighbours hold a second copy of the weights among
                       them, from which backward gathers; 1: there is none        (hpZ)
quantized_gradients    blocks of INT4 are exchanged inside a node, summed, and
                       exchanged between nodes                                    (qgZ)

(Wang et al., 2023, arXiv 2306.10209; names are those of DeepSpeed's configuration.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from costmodel.layout.offload import Offload
from profiles.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroPlus:
    """Each choice stands by itself."""

    quantized_weights: bool = False
    hpz_partition_size: int = 1
    quantized_gradients: bool = False

    def __post_init__(self) -> None:
        if self.hpz_partition_size < 1:
            raise InvalidSpec(
                f"zero_hpz_partition_size={self.hpz_partition_size} must be at least 1 "
                "(1: no second copy)"
            )

    @property
    def anything(self) -> bool:
        return self != PLAIN

    def __str__(self) -> str:
        words = [
            (self.quantized_weights, "quantized weights"),
            (self.hpz_partition_size > 1, f"hpZ {self.hpz_partition_size}"),
            (self.quantized_gradients, "quantized gradients"),
        ]
        return ", ".join(word for chosen, word in words if chosen) or "none"

    def document(self) -> dict[str, bool | int]:
        """What is chosen, by the names of DeepSpeed's configuration."""
        names = [item.name for item in fields(self)]
        chosen = {name: getattr(self, name) for name in names}
        return {
            f"zero_{name}": value
            for name, value in chosen.items()
            if value != getattr(PLAIN, name)
        }


PLAIN: Final = ZeroPlus()


def zero_plus_problems(
    plus: ZeroPlus,
    *,
    zero: int,
    dp: int,
    cp: int,
    zero_group: int,
    offload: Offload,
    experts: bool,
) -> Iterator[str]:
    """Why stages of so many ranks cannot have *plus*."""
    if not plus.anything:
        return
    if zero != 3:
        yield (
            f"ZeRO++ ({plus}) is about the weights and gradients that ZeRO-3 shards: "
            f"it needs --zero 3, not {zero}"
        )
    elif zero_group != dp:
        yield (
            f"ZeRO++ ({plus}) shards over all of dp {dp}, not over --zero-group "
            f"{zero_group}: leave --zero-group out"
        )
    if experts:
        yield (
            f"ZeRO++ ({plus}) with experts is not priced: DeepSpeed, which has it, "
            "shards no experts with ZeRO-3; leave it out"
        )
    size = plus.hpz_partition_size
    if dp * cp % size:
        yield (
            f"--zero-hpz-partition-size {size} does not divide the dp × cp = {dp * cp} "
            "ranks that hold the same weights; choose a divisor, best the ranks of a "
            "node"
        )
    if size > 1 and offload.parameters:
        yield (
            f"--zero-hpz-partition-size {size} keeps a second copy of the weights on "
            "the devices, from which --offload parameters takes them: leave one out"
        )
