"""`Pins`: a layout, or parts of it that are fixed, as a command line gives it.

Names that a catalogue of a later package owns (schedules, recomputed operators) pass
as text: that catalogue knows what is near a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from costmodel.layout import AUTO, COMPRESSIONS, CP_KINDS, RUNNING, TIERS
from profiles.commandline import (
    Choice,
    FloatRange,
    IntRange,
    collected,
    complete_some,
    counts,
    offload,
    option,
    some_of,
    switch,
    text,
)

_degree = partial(option, type=IntRange())

# The names of `costmodel.schedule.schedules`, which a command does not load to show
# its help.
SCHEDULES = (
    *("gpipe", "1f1b", "interleaved", "zb-h1", "zb-interleaved", "zb-v"),
    *("dualpipe-v", "chimera", "async-1f1b", "2bw", "pipemare", "pb"),
)
OVERLAPS = ("grad", "param", "tp", "p2p", "offload")
_MOST_IMBALANCE = 100_000.0
_MOST_BUCKET_MB = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Each is None where the command line does not say."""

    tp: int | None = _degree(help="Tensor-parallel degree.")
    pp: int | None = _degree(help="Pipeline ranks.")
    dp: int | None = _degree(
        help="Data-parallel degree.  [default: the remaining GPUs]"
    )
    cp: int | None = _degree(help="Context-parallel degree.")
    ep: int | None = _degree(help="Expert-parallel degree.")
    etp: int | None = _degree(help="Tensor-parallel degree of the experts.")
    micro_batch: int | None = _degree(
        help="Sequences per micro-batch on a data-parallel rank."
    )
    micro_batches: int | None = _degree(metavar="M", help="Micro-batches per step.")
    schedule: str | None = option(
        type=text,
        shell_complete=complete_some(*SCHEDULES),
        metavar="NAME",
        help=", ".join(SCHEDULES),
    )
    virtual_stages: int | None = _degree(
        metavar="V", help="Stages on each pipeline rank."
    )
    stage_layers: str | None = option(
        type=counts,
        metavar="N,N,…",
        help="Layers of each stage in model order, such as 8,9,9,6 or 8,2x9,6.  "
        "[default: as equal as possible; in plan, searched]",
    )
    first_stage_layers: int | None = option(
        type=IntRange(0),
        help="Layers of the first stage; the others share the rest equally.",
    )
    last_stage_layers: int | None = option(
        type=IntRange(0),
        help="Layers of the last stage; the others share the rest equally.",
    )
    zero: int | None = option(
        type=IntRange(0, 3),
        metavar="0|1|2|3",
        help="What data parallelism shards: nothing, optimizer states, gradients "
        "too, parameters too.  [default in simulate: 1]",
    )
    zero_group: int | None = _degree(
        help="Data-parallel ranks over which a shard is split, with their cp ranks.  "
        "[default: all of dp]"
    )
    zero_quantized_weights: bool | None = switch(
        help="ZeRO++ (qwZ): forward gathers weights in blocks of INT8.  [default: off]"
    )
    zero_hpz_partition_size: int | None = _degree(
        help="ZeRO++ (hpZ): ranks, preferably one node's, that "
        "hold a second copy of the weights, from which backward gathers.  [default: 1, "
        "no copy]"
    )
    zero_quantized_gradients: bool | None = switch(
        help="ZeRO++ (qgZ): gradients are reduced between nodes in "
        "blocks of INT4.  [default: off]"
    )
    sequence_parallel: bool | None = switch(
        help="Split sequences between the tensor-parallel regions.  "
        "[default: when tp > 1]"
    )
    cp_kind: str | None = option(
        type=Choice(CP_KINDS),
        help="How attention is split over cp; rsa: without flash attention, simulated "
        "only.",
    )
    recompute: str | None = option(
        type=text,
        metavar="NAME|OP,OP,…",
        help="none, selective, cheap-ops, full, sqrt (segments of √n layers), auto "
        "(chosen per stage to fit in memory) or operators by name.  "
        "[default in simulate: none]",
    )
    recompute_layers: int | None = option(
        type=IntRange(0), metavar="K", help="Only in the first K layers of each stage."
    )
    flash_attention: bool | None = switch(
        help="Attention without a stored score matrix.  [default: on]"
    )
    offload: str | None = option(
        type=offload,
        metavar="WHAT,…",
        help="optimizer, parameters, activations=RATIO (any combination), none; in "
        "plan also auto (searched).",
    )
    offload_to: str | None = option(
        type=Choice(TIERS), help="Where offloaded tensors go."
    )
    compress_activations: str | None = option(
        type=Choice((*COMPRESSIONS, AUTO)),
        metavar="BITS",
        help="Keep what layers save for backward in 1, 2, 4, 8 or 16 bits (ActNN), or "
        f"in {RUNNING} (Mesa's running ranges); none; in plan also auto (searched).",
    )
    overlap: str | None = option(
        type=some_of(*OVERLAPS),
        metavar="WHAT,…",
        help=f"Communication hidden behind compute: {', '.join(OVERLAPS)}, or none.  "
        "[default: the framework's]",
    )
    imbalance: float | None = option(
        type=FloatRange(1, _MOST_IMBALANCE),
        help="Tokens of the busiest expert relative to the mean.",
    )
    bucket_mb: float | None = option(
        type=FloatRange(0, _MOST_BUCKET_MB, strictly=True),
        metavar="MB",
        help="Bucket size of gradient reduction, in fp32; `fully_shard` ignores it and "
        "reduces per layer.  [default: the framework's]",
    )
    compress_gradients: str | None = option(
        type=text,
        metavar="HOW",
        help="What ZeRO-0 all-reduces: bf16, powersgd:RANK, or 1bit[:WARMUP_STEPS] "
        "(1-bit Adam; priced after the warm-up).  [default: gradients as they are]",
    )

    @property
    def free_tier(self) -> str | None:
        """Where a search may offload what it likes, if that is asked for."""
        return (self.offload_to or TIERS[0]) if self.offload == AUTO else None

    @property
    def free_bits(self) -> bool:
        """Whether a search may choose in how many bits activations are kept."""
        return self.compress_activations == AUTO


def pins_cut(pins: Pins) -> bool:
    """Whether the layers of some stage are given."""
    given = pins.stage_layers, pins.first_stage_layers, pins.last_stage_layers
    return any(one is not None for one in given)


def cuts_products(pins: Pins) -> bool:
    """Whether tensor parallelism is asked to hide behind products cut in pieces, which
    needs the gathers and scatters of sequence parallelism."""
    return "tp" in (pins.overlap or "").split(",")


layout_options = collected("Layout", Pins, "pins")
