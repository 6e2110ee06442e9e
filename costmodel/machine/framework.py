"""`Framework`: whose code runs the layout, as far as it changes the price.

Overlap is the framework's, not the network's: Megatron-Core hides gradient reduction
behind the last backward, classic Megatron-LM and DeepSpeed hide none of it; FSDP hides
what compute leaves time for. Every framework issues kernels from one host thread, which
puts a floor under a layer's time. `data/frameworks.json` holds them, with sources; what
a record leaves out is its `base`'s, and else the default.
DeepSpeed's "stage" is 0 and Megatron-LM's --use-distributed-optimizer off by default,
NeMo's recipes switch it on, FSDP shards everything; --hidden-dropout is 0.1
(Megatron-LM, arguments.py, which DeepSpeed's fork and OneFlow's port share), FSDP
recipes have none.

`Footprint`: what a framework keeps in memory beyond what the mathematics needs. It
belongs to a framework of a generation, never to a model or a run.
`data/footprints.json` holds them with their sources; a framework that is not in it has
none of these habits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles.arrays import Array
from profiles.errors import UnknownName
from profiles.hardware import Cluster, Device, Format, Precision, precision
from profiles.units import MB, US

FOOTPRINTS: Final = Path(__file__).parents[1] / "data" / "footprints.json"
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
    """What a framework keeps beyond what the mathematics needs."""

    fp16_gradients: str = AS_ASKED  # how gradients are held, one of GRADIENTS
    bf16_gradients: str = AS_ASKED
    shards_are_masters: bool = False  # no 16-bit weight beside ZeRO's fp32 shard
    # Copies of the logits that are alive beside the saved softmax (in fp32, or 16 bits
    # if `half_softmax`) when the loss turns into its gradient; `split_logits` are fp32
    # copies more where tensor parallelism splits the vocabulary.
    half_softmax: bool = False
    half_logits: float = 0.0
    fp32_logits: float = 0.0
    split_logits: float = 0.0
    whole_logits: bool = False  # every tensor-parallel rank has all of them
    score_bytes: float = 0.0  # kept of a score beside the softmax, by a fused softmax
    keeps_gathered: bool = False  # sequence-parallel products keep gathered inputs
    keeps_gate: bool = False  # an eager gated MLP keeps the activated gate
    # What a product keeps is in the product's format; so is what waits for the
    # gradients of weights, where backward is split.
    saves_quantised: bool = False
    # In 16 bits, beside the fused ones: one for each shape of a layer's weights.
    dummy_gradients: bool = False
    # Weights, and what the optimizer keeps, are single tensors made once, which leave
    # no fragments.
    flat_states: bool = False
    step_bytes: float = 0.0  # of the step's temporaries, a parameter of the shard
    bucket_elements: float = 0.0  # of each that gradients and parameters travel in
    live_parameters: float | None = None  # ZeRO-3 keeps no more, weight by weight
    prints: str = "device"  # which kind of peak its logs show
    pipeline_buffers: float = 1.0  # activations that are held over those 1F1B needs
    # How much less is known of its peaks than of those of frameworks that runs were
    # measured on: a factor of `memory.SPREAD`; and so many of these deviations are left
    # free where a layout is to fit with more than even odds.
    memory_spread: float = 1.0
    deviations: float = 0.0
    # What a user's own runs say: how many times what is counted of activations and of
    # what comes and goes is there, and what more there is beside tensors.
    kept: float = 1.0
    beside_bytes: float = 0.0
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

        >>> from profiles.hardware.precisions import precision
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFloor:
    """The softer maximum of device and host: a power mean, as some kernels of a layer
    are bound by the host and others not. An exponent of 1 would be their sum, infinity
    their maximum.

    `alone` is the exponent of ranks that wait for nobody in a pass, `together` where
    collectives make them wait for each other: now the device is late and now the host
    of another rank, so that more of both adds up. Both are [assumed], and fitted where
    runs tell (`costmodel.machine.coefficients`).
    """

    alone: float = 4.0
    together: float = 4.0

    def seconds(self, device_s: Array, host_s: Array, awaited_s: Array) -> Array:
        """Seconds of passes of *device_s* that take *host_s* to issue, of which
        *awaited_s* are of hosts that other ranks wait for."""
        share = np.divide(
            awaited_s, host_s, out=np.zeros_like(host_s), where=host_s > 0
        )
        if not np.any(share):
            return _power_mean(device_s, host_s, self.alone)
        waiting_s = _power_mean(device_s, host_s, self.together)
        if np.all(share == 1.0):
            return waiting_s
        alone_s = _power_mean(device_s, host_s, self.alone)
        return np.asarray((1 - share) * alone_s + share * waiting_s)


def _power_mean(device_s: Array, host_s: Array, exponent: float) -> Array:
    total = device_s**exponent + host_s**exponent
    return np.asarray(total ** (1 / exponent))


ASSUMED = LaunchFloor()
ADDED = LaunchFloor(alone=1.0, together=1.0)  # a host that waits for every kernel


CATALOGUE: Final = Path(__file__).parents[1] / "data" / "frameworks.json"
DEFAULT: Final = "meshwright"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What one thread that issues kernels takes."""

    forward_us: float  # to issue one operator of the graph forward
    backward_us: float  # the same backward: autograd's C++ thread, two products
    # Device microseconds lost between the kernels of one forward, twice as many
    # backward: two to three gaps of some 4 us [assumed].
    gap_us: float = 10.0
    floor: LaunchFloor = ASSUMED  # how device and host time make one
    # Every collective waits for the last host of its group: by so much longer for each
    # doubling of tp [assumed]; published runs say how much.
    wait: float = 0.07
    step_s: float = 0.01  # a step beside the model: data, logging, schedules [assumed]

    @property
    def forward_s(self) -> float:
        return self.forward_us * US

    @property
    def backward_s(self) -> float:
        return self.backward_us * US


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What communication is hidden, and what that costs."""

    # Of `grad`, `param`, `tp`, `p2p`, `offload` (copies to a host and back).
    hidden: frozenset[str] = frozenset()
    # Collectives and compute take turns wherever tp > 1: no gradient is reduced behind
    # a backward there.
    one_stream: bool = False
    # Gradients of ZeRO-1 are reduced when the last backward is over.
    shards_late: bool = False
    # The share of hidden communication by which compute beside it takes longer: 0.1 for
    # GPT on V100 clusters in Proteus' simulator (Duan et al., TPDS 2024, section 6; its
    # shipped configurations).
    contention: float = 0.1
    # The share of tensor-parallel collectives that nothing hides, where `tp` is hidden;
    exposed_tensor: float = 1.0
    # or each hides behind the product beside it, as far as that goes (`operator_cost`).
    cuts_products: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """How gradients are accumulated and reduced, and shards gathered."""

    format: str = "fp32"  # what 16-bit training accumulates gradients in
    # What travels: the accumulated `gradient`, `half` in 16 bits, or `half-or-fp32`:
    # fp16 gradients as they are, bf16 ones as fp32.
    reduce: str = "gradient"
    reduce_shards: str = ""  # the same under ZeRO-3, where that is another
    # By a kernel of its own (`separate`), `fused` into the weight gradient's product,
    # or by `autograd` as they are made.
    accumulation: str = "separate"
    reduces_whole: bool = False  # ZeRO-1 all-reduces gradients, then takes its shard's
    casts: bool = False  # to the format they are added up in, by a kernel
    bucket_bytes: float = 25 * MB  # PyTorch DDP's default
    messages: float = 1.0  # in which a layer's shards are gathered or scattered
    # Tensors of a layer whose parts a gather of ZeRO-1 copies out, rank by rank, by a
    # call of the host each.
    copied_out: float = 0.0
    shard_bucket: tuple[float, float] | None = None  # parameters, and for each rank
    # Multiplies the seconds of a step's reduction by fitted links, for copies, casts
    # and divisions around it.
    reduction: float = 1.0
    compressed: float = 1.0  # of what ZeRO-0 all-reduces, the share that travels


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What operators run as."""

    flash: str = "flash-2"  # attention with flash attention,
    unfused: str = "fused-softmax"  # and without
    fused_norm: bool = True
    # Gated activations and rotary turns are one PyTorch kernel for each step of theirs.
    eager: bool = False
    # Multiplies the bytes of norms, activations and residuals over those of fused
    # kernels.
    elementwise: float = 1.0
    tf32: bool = False  # products of fp32 training run in TF32, where the device has it
    # What the loss moves forward and backward for each logit, in 16-bit elements; None:
    # a fused kernel's.
    loss_elements: tuple[float, float] | None = None
    # Activations are (batch, sequence, hidden): what is gathered or scattered along the
    # sequence is copied into place where there are several.
    batch_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """How tokens reach experts and come back."""

    # Multiplies the bytes that sorting rows moves over those of fused kernels.
    traffic: float = 1.0
    exposed: float = 1.0  # the share of exchanging rows that nothing hides
    sends_once: bool = False  # a token goes but once to a rank (DeepEP)
    # Ranks that share experts gather rows and scatter sums, which takes collectives for
    # unlike ranks, as NCCL's are; else all-to-all exchanges carry both.
    gathers_rows: bool = True
    weighs_rows: bool = False  # rows are weighed when they are back, and kept for that
    # What the host needs to issue one more expert's part of a grouped product, over an
    # operator: 0 where all are one kernel.
    launch: float = 0.0
    quantise_launch: float = 0.0  # the same to quantise that part's operands
    # Where scales are of blocks one kernel quantises all experts' rows.
    quantises_together: bool = False
    # Whether the host waits for the counts of rows before it sends them, as it has to
    # without a fixed capacity; and whether it also waits where it sends none (ep 1).
    waits: bool = False
    waits_alone: bool = True
    # Multiplies what it needs to choose experts, sort rows and exchange them.
    issue: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LowPrecision:
    """Products of 8 and 4 bits."""

    # Moved for an element of an 8-bit operand: read once in 16 bits, written twice, for
    # both directions (`operators.low_precision` has other formats).
    quantise_bytes: float = 4.0
    # `quantise_bytes` are for one direction: backward makes inputs and weights again
    # from the 16 bits that are kept, and turns what it has.
    quantises_again: bool = False
    gathers: bool = False  # what is gathered along the sequence travels quantised
    casts_weights_once: bool = False  # a step, not for each micro-batch (`step_work`)
    # What the host needs to quantise a product's operands, each way, over an operator.
    launch: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a run did that does not say."""

    zero: int = 0
    shards_once: bool = False  # beside a pipeline ZeRO is level 1 at most
    interleaves: bool = False  # its recipes give a pipeline virtual stages
    cuts_by_cost: bool = False  # stages are of equal cost
    accumulates: bool = True  # unless a rank's whole batch is one micro-batch
    sequence_parallel: bool = False  # wherever tp > 1
    dropout: float = 0.1  # of a GPT
    pads_vocab: int = 1  # to a multiple of this for each tp rank,
    pads_alone: bool = True  # also where there is but one


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework's habits, by what they concern."""

    name: str
    host: Host
    overlap: Overlap = Overlap()
    gradients: Gradients = Gradients()
    kernels: Kernels = Kernels()
    moe: Experts = Experts()
    fp8: LowPrecision = LowPrecision()
    recipe: Recipe = Recipe()
    footprint: Footprint = PLAIN
    fully_shard: bool = False  # ZeRO is PyTorch's, which keeps shards beside the whole
    # Full recompute ends when the last tensor that backward needs is made.
    stops_early: bool = False
    # Else every tp rank sends a pipeline's whole boundary tensor.
    scatters_sends: bool = True
    generation: str = ""  # whose coefficients it takes where it has none of its own
    source: str = ""

    def gradient_formats(self, number: str) -> str:
        """In which formats gradients of training in precision *number* are held."""
        policy = precision(number, gradient=self.gradients.format)
        return self.footprint.gradients(policy)

    def variant(self, **habits: Mapping[str, Any]) -> Framework:
        """The same framework with other *habits*, by group.

        >>> load_framework("fsdp2").variant(host={"gap_us": 0.0}).host.gap_us
        0.0
        """
        groups = {
            group: replace(getattr(self, group), **changes)
            for group, changes in habits.items()
        }
        return replace(self, **groups)


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, Any]:
    return cast(dict[str, Any], msgspec.json.decode(CATALOGUE.read_bytes()))


@lru_cache(maxsize=1)
def frameworks() -> dict[str, Framework]:
    """Every framework by name."""
    records = {record["name"]: record for record in _catalogue()["frameworks"]}

    def whole(record: dict[str, Any]) -> dict[str, Any]:
        found = whole(records[record["base"]]) if "base" in record else {}
        for key, value in record.items():
            group = isinstance(value, dict)
            found[key] = {**found.get(key, {}), **value} if group else value
        return found

    habits = footprints()
    items = msgspec.convert([*map(whole, records.values())], list[Framework])
    return {
        item.name: replace(item, footprint=_footprint(item, habits)) for item in items
    }


def _footprint(item: Framework, habits: Mapping[str, Footprint]) -> Footprint:
    """Its own habits, its generation's, or those of PyTorch's `fully_shard`."""
    kin = (item.name, item.generation, "fsdp2" if item.fully_shard else "")
    return next((habits[name] for name in kin if name in habits), PLAIN)


def load_framework(name: str) -> Framework:
    """The framework called *name*; raises UnknownName."""
    known = frameworks()
    if name.lower() in known:
        return known[name.lower()]
    raise UnknownName("framework", name, known)


def framework_of_run(printed: str) -> Framework:
    """The nearest known framework to what a published run printed.

    Unknown ones are priced as the default; the caller says so.
    """
    text = printed.lower()
    spellings = _catalogue()["spellings"]  # what tables print → whose price it is
    names = (name for spelling, name in spellings if spelling in text)
    return load_framework(next(names, DEFAULT))


def hides_gradients(
    base: Framework, tp: ArrayLike, zero: ArrayLike = 0
) -> NDArray[np.bool_]:
    """Where *base* reduces gradients behind the last backward, under degrees *tp* and
    levels *zero*."""
    apart = np.asarray(tp) == 1 if base.overlap.one_stream else np.asarray(True)
    soon = np.asarray(zero) != 1 if base.overlap.shards_late else np.asarray(True)
    return np.asarray(apart & soon & ("grad" in base.overlap.hidden))


def shares_cores(device: Device) -> bool:
    """Whether ranks on *device* communicate with the cores that compute: CPU ranks."""
    return device.architecture.lower() == "cpu"


def framework_on(base: Framework, device: Device) -> Framework:
    """*base* as it runs on *device*: where cores are shared, nothing is hidden."""
    return with_overlap(base, frozenset()) if shares_cores(device) else base


def framework_at(cluster: Cluster, base: Framework, blocked: float = 1.0) -> Framework:
    """*base* as jobs run it on *cluster*: where a host waits for each kernel, its time
    and the device's add up, and an operator takes it *blocked* times as long."""
    if not cluster.blocks_launches:
        return base
    forward_us, backward_us = base.host.forward_us, base.host.backward_us
    return base.variant(
        host={
            "floor": ADDED,
            "forward_us": forward_us * blocked,
            "backward_us": backward_us * blocked,
        }
    )


def with_buckets(base: Framework, size_bytes: float) -> Framework:
    """The same framework reducing gradients of *size_bytes*, in fp32, together."""
    grown = base.gradients.shard_bucket and (size_bytes / Format.FP32.bytes, 0.0)
    return base.variant(gradients={"bucket_bytes": size_bytes, "shard_bucket": grown})


def with_overlap(base: Framework, hidden: frozenset[str]) -> Framework:
    """The same framework hiding just *hidden*.

    Tensor-parallel communication that is to hide and for which it has no figure of its
    own hides behind products; what is not to hide is exposed.
    """
    hides = "tp" in hidden
    share = base.overlap.exposed_tensor if hides else 1.0
    return base.variant(
        overlap={
            "hidden": hidden,
            "exposed_tensor": share,
            "cuts_products": hides and share == 1.0,
        }
    )
