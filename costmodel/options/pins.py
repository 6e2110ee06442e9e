"""`Pins`: a layout, or parts of it that are fixed, as a command line gives it.

Names that a catalogue of a later package owns (schedules, recomputed operators) pass
as text: that catalogue knows what is near a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from costmodel.layout import CP_KINDS, TIERS
from profiles.commandline import (
    Choice,
    FloatRange,
    Function,
    IntRange,
    collected,
    counts,
    offload,
    option,
    some_of,
    text,
)

_option = partial(option, "Layout")
_degree = partial(_option, type=IntRange())

# The names of `costmodel.schedule.schedules`, which a command does not load to show
# its help.
SCHEDULES = (
    *("gpipe", "1f1b", "interleaved", "zb-h1", "zb-interleaved", "zb-v"),
    *("dualpipe-v", "chimera"),
)
OVERLAPS = ("grad", "param", "tp", "p2p", "offload")
_MOST_IMBALANCE = 100_000.0
_MOST_BUCKET_MB = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Each is None where the command line does not say."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    schedule: str | None = None
    virtual_stages: int | None = None
    stage_layers: str | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    zero: int | None = None
    zero_group: int | None = None
    zero_quantized_weights: bool | None = None
    zero_hpz_partition_size: int | None = None
    zero_quantized_gradients: bool | None = None
    sequence_parallel: bool | None = None
    cp_kind: str | None = None
    recompute: str | None = None
    recompute_layers: int | None = None
    flash_attention: bool | None = None
    offload: str | None = None
    offload_to: str | None = None
    overlap: str | None = None
    imbalance: float | None = None
    bucket_mb: float | None = None

    @property
    def free_tier(self) -> str | None:
        """Where a search may offload what it likes, if that is asked for."""
        return (self.offload_to or TIERS[0]) if self.offload == "auto" else None


def pins_cut(pins: Pins) -> bool:
    """Whether the layers of some stage are given."""
    given = pins.stage_layers, pins.first_stage_layers, pins.last_stage_layers
    return any(one is not None for one in given)


def cuts_products(pins: Pins) -> bool:
    """Whether tensor parallelism is asked to hide behind products cut in pieces, which
    needs the gathers and scatters of sequence parallelism."""
    return "tp" in (pins.overlap or "").split(",")


_OPTIONS: tuple[Callable[[Function], Function], ...] = (
    _degree("--tp", help="Tensor-parallel degree."),
    _degree("--pp", help="Pipeline ranks."),
    _degree("--dp", help="Data-parallel degree.  [default: fills up]"),
    _degree("--cp", help="Context-parallel degree."),
    _degree("--ep", help="Expert-parallel degree."),
    _degree("--etp", help="Tensor-parallel degree of the experts."),
    _degree("--micro-batch", help="Sequences a data-parallel rank has at once."),
    _degree("--micro-batches", metavar="M", help="How many of them in a step."),
    _option(
        "--schedule",
        type=text,
        metavar="NAME",
        help=", ".join(SCHEDULES),
    ),
    _degree("--virtual-stages", metavar="V", help="Stages on each pipeline rank."),
    _option(
        "--stage-layers",
        type=counts,
        metavar="N,N,…",
        help="Layers of each stage in model order: 8,9,9,6; 8,2x9,6 is the same.  "
        "[default: as even as can be; in plan, searched]",
    ),
    _option(
        "--first-stage-layers",
        type=IntRange(0),
        help="Layers of the first stage; the others have the rest, as even as can be.",
    ),
    _option(
        "--last-stage-layers",
        type=IntRange(0),
        help="The same of the last stage.",
    ),
    _option(
        "--zero",
        type=IntRange(0, 3),
        metavar="0|1|2|3",
        help="What data parallelism shards: nothing, optimizer states, gradients "
        "too, parameters too.  [default in simulate: 1]",
    ),
    _degree(
        "--zero-group",
        help="Data-parallel ranks that a shard spans, each with those of "
        "its cp.  [default: all of dp]",
    ),
    _option(
        "--zero-quantized-weights/--no-zero-quantized-weights",
        default=None,
        help="ZeRO++ (qwZ), simulated only: forward gathers weights in blocks of "
        "INT8.  [default: off]",
    ),
    _degree(
        "--zero-hpz-partition-size",
        help="ZeRO++ (hpZ), simulated only: ranks, best those of a node, that hold a "
        "second copy of the weights, from which backward gathers.  [default: 1, no "
        "copy]",
    ),
    _option(
        "--zero-quantized-gradients/--no-zero-quantized-gradients",
        default=None,
        help="ZeRO++ (qgZ), simulated only: gradients are reduced between nodes in "
        "blocks of INT4.  [default: off]",
    ),
    _option(
        "--sequence-parallel/--no-sequence-parallel",
        default=None,
        help="Split sequences between the tensor-parallel regions.  "
        "[default: when tp > 1]",
    ),
    _option(
        "--cp-kind",
        type=Choice(CP_KINDS),
        help="rsa is without flash attention, and simulated only.",
    ),
    _option(
        "--recompute",
        type=text,
        metavar="NAME|OP,OP,…",
        help="none, selective, cheap-ops, full, sqrt (√n layers together), auto (what "
        "each stage's memory asks for) or operators by name.  "
        "[default in simulate: none]",
    ),
    _option(
        "--recompute-layers",
        type=IntRange(0),
        metavar="K",
        help="Only in the first K layers of each stage.",
    ),
    _option(
        "--flash-attention/--no-flash-attention",
        default=None,
        help="Attention without a stored score matrix.  [default: on]",
    ),
    _option(
        "--offload",
        type=offload,
        metavar="WHAT,…",
        help="optimizer, parameters, activations=RATIO (any of them), none, or, in "
        "plan, auto: searched.",
    ),
    _option(
        "--offload-to",
        type=Choice(TIERS),
        help="Where offloaded tensors go.",
    ),
    _option(
        "--overlap",
        type=some_of(*OVERLAPS),
        metavar="WHAT,…",
        help=f"Communication hidden behind compute: {', '.join(OVERLAPS)}, or none.  "
        "[default: the framework's]",
    ),
    _option(
        "--imbalance",
        type=FloatRange(1, _MOST_IMBALANCE),
        help="Tokens of the busiest expert over the mean.",
    ),
    _option(
        "--bucket-mb",
        type=FloatRange(0, _MOST_BUCKET_MB, strictly=True),
        metavar="MB",
        help="Gradients reduced together, in fp32; `fully_shard` reduces layer by "
        "layer, whatever is said.  [default: the framework's]",
    ),
)


def layout_options(function: Function) -> Function:
    """Add the layout's options to a command, which takes them as ``pins``."""
    return collected(function, into=Pins, keyword="pins", options=_OPTIONS)
