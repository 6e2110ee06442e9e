"""What of the states is elsewhere than ZeRO puts it: `Offload` and `ZeroPlus`.

`Offload` says what leaves the device between uses, and where it goes:

activations   a share of what a layer keeps for backward (Yuan et al., ATC 2024)
compress      in how many bits all that it keeps stays where it is (ActNN, Mesa)
optimizer     its states and step, and below them the gradients (ZeRO-Offload)
parameters    the shards of ZeRO-3 (ZeRO-Infinity)

`ZeroPlus` is ZeRO++, three choices that send less between nodes under ZeRO-3:

quantized_weights      forward's gather carries blocks of INT8                    (qwZ)
hpz_partition_size     so many neighbours hold a second copy of the weights among
                       them, from which backward gathers; 1: there is none        (hpZ)
quantized_gradients    blocks of INT4 are exchanged inside a node, summed, and
                       exchanged between nodes                                    (qgZ)

(Wang et al., 2023, arXiv 2306.10209; names are those of DeepSpeed's configuration.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from costmodel.layout.retention import (
    BITS,
    EVERYTHING,
    RUNNING_BITS,
    Action,
    Retention,
    Treatment,
)
from profiles.errors import InvalidSpec
from profiles.models import Block

TIERS: Final = ("cpu", "nvme")
STATES: Final = ("optimizer", "parameters")
AS_IT_IS: Final = "none"
RUNNING: Final = f"{RUNNING_BITS}-running"  # of Mesa's running ranges
COMPRESSIONS: Final = (AS_IT_IS, *map(str, BITS), RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """`activations` is a share from 0 to 1; `tier` holds all that leaves."""

    activations: float = 0.0
    optimizer: bool = False
    parameters: bool = False
    tier: str = "cpu"
    compress: str = AS_IT_IS

    def __post_init__(self) -> None:
        if self.compress not in COMPRESSIONS:
            raise InvalidSpec(
                f"activations in {self.compress!r} bits: choose one of "
                f"{', '.join(COMPRESSIONS)}"
            )
        if self.activations and self.compress != AS_IT_IS:
            raise InvalidSpec(
                f"activations are offloaded ({self.activations:g}) or compressed "
                f"({self.compress}), not both; leave one out"
            )
        if not 0 <= self.activations <= 1:
            raise InvalidSpec(
                f"offload activations={self.activations:g} must be a ratio from 0 to 1"
            )
        if self.tier not in TIERS:
            raise InvalidSpec(
                f"offload tier {self.tier!r} is not one of {', '.join(TIERS)}"
            )

    def __str__(self) -> str:
        words = [name for name in STATES if getattr(self, name)]
        if self.activations:
            words.append(f"activations={self.activations:g}")
        return ",".join(words) or "none"

    @property
    def states(self) -> bool:
        return self.optimizer or self.parameters

    @property
    def anything(self) -> bool:
        return self.states or self.activations > 0

    @property
    def of_states(self) -> Offload:
        """The same without activations, which layers tell one by one."""
        return replace(self, activations=0.0, compress=AS_IT_IS)

    @property
    def of_activations(self) -> Treatment | None:
        """What is done with each tensor that a layer keeps, if anything."""
        if self.activations:
            away = Action.OFFLOAD
            return Treatment(action=away, ratio=self.activations, tier=self.tier)
        if self.compress == AS_IT_IS:
            return None
        bits, _, running = self.compress.partition("-")
        return Treatment(action=Action.COMPRESS, bits=int(bits), running=bool(running))

    def document(self) -> dict[str, str]:
        """The states that are not on the device, as a layout file holds them; nothing
        where all are."""
        if not self.states:
            return {}
        return {"offload": str(self), "offload_to": self.tier}


NOTHING: Final = Offload()


def parse_offload(
    text: str | None, tier: str | None = None, compress: str | None = None
) -> Offload:
    """What the options say: any of optimizer, parameters and activations=RATIO, and in
    how many bits activations that stay are kept.

    >>> str(parse_offload("activations=0.5,optimizer"))
    'optimizer,activations=0.5'

    Raises InvalidSpec.
    """
    if text == "auto":
        raise InvalidSpec(
            "offload auto is chosen by plan; name what to offload: optimizer, "
            "parameters, activations=RATIO or none"
        )
    if compress == "auto":
        raise InvalidSpec(
            "compress-activations auto is chosen by plan; give the bits: "
            f"{', '.join(COMPRESSIONS)}"
        )
    shares = {}
    for part in (text or "none").split(","):
        name, _, share = part.strip().partition("=")
        if name == "none":
            continue
        if name not in (*STATES, "activations") or (share and name in STATES):
            raise InvalidSpec(
                f"offload {part.strip()!r} is not one of optimizer, parameters, "
                "activations=RATIO or none"
            )
        try:
            shares[name] = float(share or 1)
        except ValueError:
            raise InvalidSpec(
                f"offload {part.strip()!r} has a ratio that is not a number"
            ) from None
    return Offload(
        activations=shares.get("activations", 0.0),
        optimizer="optimizer" in shares,
        parameters="parameters" in shares,
        tier=tier or "cpu",
        compress=compress or AS_IT_IS,
    )


def offloaded(kept: Retention, block: Block, offload: Offload) -> Retention:
    """*kept*, and of everything that it keeps the share that *offload* moves away, or
    all of it compressed.

    Where the whole layer is made again, all that is kept is its input.
    """
    away = offload.of_activations
    if away is None:
        return kept
    everything = EVERYTHING not in kept.recomputed
    if not everything and (block.entry is None or block.entry.name in kept.recomputed):
        return kept
    name = EVERYTHING if everything or block.entry is None else block.entry.name
    return Retention(tensors={**kept.tensors, name: away})


def offload_problems(offload: Offload, *, zero: int, on_host: bool) -> Iterator[str]:
    """Why a layout cannot offload so; *on_host* where the device is a CPU."""
    if not offload.anything:
        return
    if on_host and offload.tier == "cpu":
        yield (
            f"--offload {offload}: the device is a CPU, whose memory is the host's; "
            "leave it out, or put optimizer states on its drive: --offload-to nvme"
        )
    if offload.parameters and zero != 3:
        yield (
            f"--offload parameters keeps ZeRO-3's shards on the {offload.tier}: it "
            f"needs --zero 3, not {zero}"
        )


def sums_shards_last(offload: Offload, zero: Any, *, copies: Any) -> Any:
    """Whether replicas of a shard sum it when all micro-batches are in, where it lies:
    holders of a stage that has several; and where gradients are away as ZeRO-2 and 3
    scatter them, which cannot wait for their sums on the device. Numbers or arrays."""
    return (copies > 1) | ((zero >= 2) & offload.optimizer)


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
