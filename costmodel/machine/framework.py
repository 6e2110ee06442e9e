"""`Software`: whose code runs the layout, as far as it changes the price.

Overlap is the framework's, not the network's: Megatron-Core hides gradient reduction
behind the last backward, classic Megatron-LM and DeepSpeed hide none of it; FSDP hides
what compute leaves time for. Every framework issues kernels from one host thread, which
puts a floor under a layer's time. `data/frameworks.json` holds them, with sources:
DeepSpeed's "stage" is 0 and Megatron-LM's --use-distributed-optimizer off by default,
NeMo's recipes switch it on, FSDP shards everything; --hidden-dropout is 0.1
(Megatron-LM, arguments.py, which DeepSpeed's fork and OneFlow's port share), FSDP
recipes have none.

`Footprint`: what a framework keeps in memory beyond what the mathematics needs.

Like `Software`, it belongs to a framework of a generation, never to a model or a run.
`data/footprints.json` holds them with their sources; a framework that is not in it has
none of these habits.

`LaunchFloor`: what a device computes takes no less than a host needs to issue it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

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

# Compute beside a collective takes (1 + γ) as long: γ = 0.1 for GPT on V100 clusters in
# Proteus' simulator (Duan et al., TPDS 2024, section 6; its shipped configurations).
OVERLAP_SLOWDOWN: Final = 0.1
# Every collective waits for the last host of its group: by so much longer for each
# doubling of tp [assumed]; published runs say how much (`host_wait`).
HOST_WAIT: Final = 0.07
STEP_S: Final = 0.01  # [assumed] reading data, logging, the scheduler of learning rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A framework. `*_host_us` are host microseconds to issue one operator of the graph
    forward, or backward (autograd's C++ thread, two products); `gap_us` are device
    microseconds lost between the kernels of one forward, twice as many backward
    [assumed] two to three gaps of some 4 us.

    With `one_stream` collectives and compute take turns wherever tp > 1: no gradient
    is reduced behind a backward there.
    `overlap` names what is hidden: `grad`, `param`, `tp`, `p2p`, `offload` (copies to a
    host and back). `gradient_format` is what 16-bit training accumulates gradients in;
    `reduce` what travels: the accumulated `gradient`, `half` in 16 bits, or
    `half-or-fp32`: fp16 gradients as they are, bf16 ones as fp32; `reduce_shards` the
    same under ZeRO-3.
    `stops_early`: full recompute ends when the last tensor that backward needs is made.
    Without `scatters_sends` every tp rank sends a pipeline's whole boundary tensor.
    `fully_shard`: ZeRO is PyTorch's, which keeps shards beside what it gathered.
    `flash` and `unfused` are the attention kernels with and without flash attention.
    `footprint`: what it keeps in memory beyond what the mathematics needs.
    Of experts: `expert_traffic` multiplies the bytes that sorting rows moves over those
    of fused kernels, `exposed_expert` is the share of exchanging rows that nothing
    hides, and `sends_once` that a token goes but once to a rank (DeepEP);
    `gathers_rows`: ranks that share experts gather rows and scatter sums, which takes
    collectives for unlike ranks, as NCCL's are; else all-to-all exchanges carry both;
    `weighs_rows`: rows are weighed when they have come back, and kept for that;
    `expert_launch` is what the host needs to issue one more expert's part of a grouped
    product, over an operator: 0 where all are one kernel.
    `batch_first`: activations are (batch, sequence, hidden), so what is gathered or
    scattered along the sequence is copied into place where there are several.
    `generation` is whose coefficients it takes where it has none of its own.
    `elementwise` multiplies the bytes of norms, activations and residuals over those of
    fused kernels; `contention` is the share of hidden communication by which compute
    beside it takes longer; `exposed_tensor` the share of tensor-parallel collectives
    that nothing hides, where `overlap` has `tp`; with `cuts_products` each hides behind
    the product beside it instead, as far as that goes (`operator_price`); `reduction`
    multiplies the seconds of a step's gradient reduction by fitted links, for copies,
    casts and divisions around it; `launch_floor` and `host_wait` say how device and
    host time make one; `step_s` what a step takes beside the model (data, logging).
    `tf32`: products of fp32 training run in TF32, where the device has it.
    `loss_elements` are what the loss moves forward and backward for each logit, in
    16-bit elements (None: a fused kernel's); `pads_vocab`: the vocabulary is padded to
    a multiple of this for each tp rank, `pads_alone`: also where there is but one.
    `quantise_bytes` are moved for an element of an 8-bit operand: read once in 16 bits,
    written twice, for both directions; each reading for a maximum is 2 more; with
    `quantises_again` they are for one direction, and backward makes inputs and weights
    again from the 16 bits that are kept, and turns what it has. `casts_weights_once`:
    weights of 8 or 4 bits are made once a step, not for each micro-batch
    (`step_work`). `gathers_quantised`:
    what a product gathers along the sequence travels in the product's 8 or 4 bits.
    What a run did that does not say: `zero`, `sequence_parallel` wherever tp > 1,
    `dropout` of a GPT; `accumulates` unless a rank's whole batch is one micro-batch;
    `shards_once`: beside a pipeline ZeRO is level 1 at most; `interleaves`: its recipes
    give a pipeline virtual stages; `cuts_by_cost`: stages are of equal cost.
    """

    name: str
    forward_host_us: float
    backward_host_us: float
    overlap: frozenset[str]
    one_stream: bool = False
    gradient_format: str = "fp32"
    reduce: str = "gradient"
    reduce_shards: str = ""  # under ZeRO-3, where that is another
    # or fused into the weight gradient's product, or by autograd as they are made
    accumulation: str = "separate"
    reduces_whole: bool = False  # ZeRO-1 all-reduces gradients, then takes its shard's
    casts_gradients: bool = False  # to the format they are added up in, by a kernel
    flash: str = "flash-2"
    unfused: str = "fused-softmax"
    fused_norm: bool = True
    expert_traffic: float = 1.0
    exposed_expert: float = 1.0
    sends_once: bool = False
    gathers_rows: bool = True
    weighs_rows: bool = False
    expert_launch: float = 0.0
    stops_early: bool = False
    fully_shard: bool = False
    scatters_sends: bool = True
    batch_first: bool = False
    bucket_bytes: float = 25 * MB  # PyTorch DDP's default
    messages: float = 1.0  # in which a layer's shards are gathered or scattered
    shard_bucket: tuple[float, float] | None = None  # parameters, and for each rank
    footprint: Footprint = PLAIN
    generation: str = ""
    elementwise: float = 1.0
    contention: float = OVERLAP_SLOWDOWN
    reduction: float = 1.0
    exposed_tensor: float = 1.0
    cuts_products: bool = False
    tf32: bool = False
    gap_us: float = 10.0
    launch_floor: LaunchFloor = ASSUMED
    host_wait: float = HOST_WAIT
    step_s: float = STEP_S
    loss_elements: tuple[float, float] | None = None
    pads_vocab: int = 1
    pads_alone: bool = True
    quantise_bytes: float = 4.0
    quantises_again: bool = False
    gathers_quantised: bool = False
    casts_weights_once: bool = False
    zero: int = 0
    shards_once: bool = False
    interleaves: bool = False
    cuts_by_cost: bool = False
    accumulates: bool = True
    sequence_parallel: bool = False
    dropout: float = 0.1
    source: str = ""

    @property
    def forward_host_s(self) -> float:
        return self.forward_host_us * US

    @property
    def backward_host_s(self) -> float:
        return self.backward_host_us * US

    def gradients(self, number: str) -> str:
        """In which formats gradients of training in precision *number* are held."""
        policy = precision(number, gradient=self.gradient_format)
        return self.footprint.gradients(policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Catalogue:
    frameworks: list[Software]
    spellings: list[tuple[str, str]]  # what tables print → whose price it is


@lru_cache(maxsize=1)
def _catalogue() -> _Catalogue:
    return msgspec.json.decode(CATALOGUE.read_bytes(), type=_Catalogue)


@lru_cache(maxsize=1)
def frameworks() -> dict[str, Software]:
    """Every framework by name."""
    habits = footprints()
    return {
        item.name: replace(item, footprint=_footprint(item, habits))
        for item in _catalogue().frameworks
    }


def _footprint(item: Software, habits: Mapping[str, Footprint]) -> Footprint:
    """Its own habits, its generation's, or those of PyTorch's `fully_shard`."""
    kin = (item.name, item.generation, "fsdp2" if item.fully_shard else "")
    return next((habits[name] for name in kin if name in habits), PLAIN)


def software(name: str) -> Software:
    """The framework called *name*; raises UnknownName."""
    known = frameworks()
    if name.lower() in known:
        return known[name.lower()]
    raise UnknownName("framework", name, known)


def software_of_run(printed: str) -> Software:
    """The nearest known framework to what a published run printed.

    Unknown ones are priced as the default; the caller says so.
    """
    text = printed.lower()
    for spelling, name in _catalogue().spellings:
        if spelling in text:
            return software(name)
    return software(DEFAULT)


def hides_gradients(base: Software, tp: ArrayLike) -> NDArray[np.bool_]:
    """Where *base* reduces gradients behind the last backward, under degrees *tp*."""
    apart = np.asarray(tp) == 1 if base.one_stream else np.asarray(True)
    return np.asarray(apart & ("grad" in base.overlap))


def shares_cores(device: Device) -> bool:
    """Whether ranks on *device* communicate with the cores that compute: CPU ranks."""
    return device.architecture.lower() == "cpu"


def software_on(base: Software, device: Device) -> Software:
    """*base* as it runs on *device*: where cores are shared, nothing is hidden."""
    return with_overlap(base, frozenset()) if shares_cores(device) else base


def software_at(cluster: Cluster, base: Software, blocked: float = 1.0) -> Software:
    """*base* as jobs run it on *cluster*: where a host waits for each kernel, its time
    and the device's add up, and an operator takes it *blocked* times as long."""
    if not cluster.blocks_launches:
        return base
    return replace(
        base,
        launch_floor=ADDED,
        forward_host_us=base.forward_host_us * blocked,
        backward_host_us=base.backward_host_us * blocked,
    )


def with_buckets(base: Software, size_bytes: float) -> Software:
    """The same framework reducing gradients of *size_bytes*, in fp32, together."""
    grown = base.shard_bucket and (size_bytes / Format.FP32.bytes, 0.0)
    return replace(base, bucket_bytes=size_bytes, shard_bucket=grown)


def with_overlap(base: Software, overlap: frozenset[str]) -> Software:
    """The same framework hiding just *overlap*.

    Tensor-parallel communication that is to hide and for which it has no figure of its
    own hides behind products; what is not to hide is exposed.
    """
    hides = "tp" in overlap
    share = base.exposed_tensor if hides else 1.0
    return replace(
        base,
        overlap=overlap,
        exposed_tensor=share,
        cuts_products=hides and share == 1.0,
    )
