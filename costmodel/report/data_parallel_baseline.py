"""`torch.nn.DataParallel`: one process, a Python thread for each GPU of a node.

    forward    GPU 0's weights are broadcast, inputs scattered; replicas run, launched
               by one interpreter in turn; logits are gathered on GPU 0, and the loss of
               all sequences is computed there
    backward   the logits' gradients are scattered; replicas run; whole gradients are
               summed on GPU 0 when the last one is there: nothing hides that
    step       on GPU 0 alone

So it is for every micro-batch, as each is a forward of its own (torch/nn/parallel/
data_parallel.py). What `DistributedDataParallel` would do stands beside it: the same
replicas, one process each, gradients in buckets behind backward.

`Loss`: what the cross-entropies of a micro-batch take, apart from the model.

`ComparedProcesses`: a layout's replicas in one process, and in one each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodel.layout import PLAIN, Layout, Ranges
from costmodel.machine import DEFAULT, Machine, near_members, traffic_s
from costmodel.operators import OperatorPrice
from costmodel.simulation import Estimate, estimate
from costmodel.stages import (
    LayoutPricer,
    Memory,
    PeakContents,
    Process,
    StagePrice,
    StatePolicy,
    data_parallel,
    memory,
)
from profiles.arrays import Array
from profiles.errors import Contradiction, Unsupported
from profiles.models import Job, Kind
from profiles.units import US


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The losses of a micro-batch, of one GPU's sequences or of all: seconds on the
    device, bytes of logits, of what they keep and of what they work in."""

    forward_s: float
    backward_s: float
    logits_bytes: float
    kept_bytes: float
    working_bytes: float

    @classmethod
    def of(cls, pricer: LayoutPricer) -> Loss:
        found = list(_losses(pricer))
        prices = [price for price, _ in found]
        return cls(
            forward_s=sum(float(one.forward.device_s) for one in prices),
            backward_s=sum(float(one.backward.device_s) for one in prices),
            logits_bytes=sum(size for _, size in found),
            kept_bytes=sum(
                float(size)
                for one in prices
                for size in (one.saved | one.internal).values()
            ),
            working_bytes=max(
                float(one.output_bytes + one.input_bytes) for one in prices
            ),
        )


def _losses(pricer: LayoutPricer) -> Iterator[tuple[OperatorPrice, float]]:
    """Each cross-entropy's price, and the bytes of its logits."""
    graph, (stage,) = pricer.job.graph, pricer.layout.stages
    blocks = dict(zip(graph.layer_names, graph.layers, strict=True))
    for name, plan in zip(stage.layers, stage.plans, strict=True):
        block = blocks[name]
        for operator in block.operators:
            if operator.kind is Kind.CROSS_ENTROPY:
                prices = pricer.operator_prices(block, plan, stage)
                logits = operator.inputs[0].name
                made = {one.output.name: one.name for one in block.operators}
                yield prices[operator.name], float(prices[made[logits]].output_bytes)


# What a Python copy of a module takes, for each replica and forward [measured] 12 to 15
# µs with torch 2.13 on an EPYC, up to 27 on a busy one (benchmarks/one_process.py). A
# module is taken to be an operator. The same runs: two threads with a forward each take
# 2.3 to 3.2 times as long as one, so that in turn, twice, is the least.
REPLICATE_S: Final = 13 * US
ID_BYTES: Final = 8  # of a token, as torch.int64
PARTS: Final = (
    *("broadcast", "scatter", "forward", "gather", "loss", "backward", "reduce"),
    *("optimizer", "other"),
)


@dataclass(frozen=True, kw_only=True)
class SingleProcess:
    """A step of `nn.DataParallel`: seconds by part, the memory of GPU 0 and of each of
    the others."""

    breakdown_s: dict[str, float]
    first: Memory
    others: Memory

    @property
    def step_time_s(self) -> float:
        return sum(self.breakdown_s.values())


def single_process(job: Job, layout: Layout, on: Machine) -> SingleProcess:
    """The replicas of *layout*, which has nothing but data parallelism, no ZeRO and
    gradients in the weights' format, under `nn.DataParallel`."""
    m, where = layout.micro_batches, _in_turn(on, layout.gpus)
    each, every = (
        LayoutPricer(job=job, layout=_one_gpu(layout, sequences), machine=where)
        for sequences in (job.global_batch // layout.gpus, job.global_batch)
    )
    (price,) = each.stages()
    loss, whole_loss = Loss.of(each), Loss.of(every)
    sent = _Sent.of(job, layout, price, whole_loss, where)
    forward_s = float(price.forward_s) - loss.forward_s
    backward_s = float(price.backward_s) - loss.backward_s
    parts = {
        "broadcast": m * sent.broadcast_s,
        "scatter": m * sent.scatter_s,
        "forward": m * forward_s,
        "gather": m * 2 * sent.gather_s,  # and the gradients' way back
        "loss": m * (whole_loss.forward_s + whole_loss.backward_s),
        "backward": m * backward_s,
        "reduce": m * sent.reduce_s,
        "optimizer": float(price.step_s),
        "other": on.step_s,
    }
    first, others = _memories(job, layout, price, (loss, whole_loss), where)
    return SingleProcess(
        breakdown_s={name: parts[name] for name in PARTS}, first=first, others=others
    )


def _in_turn(on: Machine, gpus: int) -> Machine:
    """*on* where one interpreter launches the forwards of so many GPUs. Backwards are
    launched by autograd's threads, one a GPU, which need no interpreter."""
    own = on.framework
    shared = own.variant(host={"forward_us": own.host.forward_us * gpus})
    return replace(on.running(gpus), framework=shared)


def _one_gpu(layout: Layout, sequences: int) -> Layout:
    """*layout*'s replica on one GPU, which has so many of a step's *sequences*."""
    (stage,) = layout.stages
    mesh = replace(stage.mesh, ranks=Ranges(((0, 0),)), dp_replicate=1)
    return replace(layout, stages=(replace(stage, mesh=mesh),), global_batch=sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """Seconds of what a micro-batch sends between GPU 0 and the others."""

    broadcast_s: float
    scatter_s: float
    gather_s: float
    reduce_s: float

    @classmethod
    def of(
        cls, job: Job, layout: Layout, price: StagePrice, loss: Loss, on: Machine
    ) -> _Sent:
        """Weights go by NCCL's broadcast, gradients come by its reduction, which takes
        as long, both copied into buffers first; inputs and outputs device by device,
        through GPU 0's one link."""
        gpus, precision = layout.gpus, layout.precision
        trained = float(price.parameters + price.expert_parameters)
        frozen = float(price.frozen_parameters) * precision.frozen_bytes
        weights = trained * precision.parameter.bytes + frozen
        gradients = trained * precision.gradient.bytes
        modules = sum(len(block.operators) * count for block, count in job.graph.blocks)
        ids = job.tokens / layout.micro_batches * ID_BYTES
        away = 1 - 1 / gpus  # what of all is not GPU 0's own
        copied_s = modules * gpus * REPLICATE_S * on.pace
        return cls(
            broadcast_s=max(_through_all_s(weights, gpus, on), copied_s),
            scatter_s=_one_by_one_s(ids * away, gpus, on),
            gather_s=_one_by_one_s(loss.logits_bytes * away, gpus, on),
            reduce_s=_through_all_s(gradients, gpus, on),
        )


def _through_all_s(size_bytes: float, gpus: int, on: Machine) -> float:
    """Seconds of a broadcast over the node, or of a sum on its first GPU, and of the
    copy of so many bytes into buffers.

    A ring hands all bytes on once: half of what an all-reduce does with n/(n − 1) times
    as many, which is what samples know.
    """
    ranks = np.asarray(gpus)
    near = near_members(np.asarray(1), ranks, on.island)
    twice = on.collective(
        "all_reduce", np.asarray(size_bytes * gpus / (gpus - 1)), ranks=ranks, near=near
    )
    copied_s = traffic_s(
        np.asarray(2 * size_bytes), device=on.device, rates=on.rates, kernels=1
    )
    return float(on.once_a_step(twice).seconds / 2 + copied_s)


def _one_by_one_s(size_bytes: float, gpus: int, on: Machine) -> float:
    """Seconds of copies of so many bytes together, out of or into GPU 0."""
    far = np.asarray(gpus > on.island.domain)
    return float(on.send(np.asarray(size_bytes), far=far).seconds)


def _memories(
    job: Job,
    layout: Layout,
    price: StagePrice,
    losses: tuple[Loss, Loss],
    on: Machine,
) -> tuple[Memory, Memory]:
    """GPU 0's and another one's bytes at their peaks: as backward begins, with all
    activations, or as it ends, with whole gradients that are not yet summed. GPU 0 has
    those and their sum; its logits are there until the next step."""
    precision = layout.precision
    loss, whole_loss = losses
    trained = price.parameters + price.expert_parameters
    fresh = float(trained) * precision.gradient.bytes
    cache = precision.cast_cache.bytes if precision.cast_cache else 0.0
    working = max(
        float(price.forward_working_bytes), float(price.backward_working_bytes)
    )
    activations = float(price.saved_bytes) - loss.kept_bytes
    logits = whole_loss.logits_bytes
    first = _fuller(
        layout,
        job,
        on,
        parameters=price.parameters,
        expert_parameters=price.expert_parameters,
        frozen_parameters=price.frozen_parameters,
        activations=(activations + whole_loss.kept_bytes + logits, logits),
        transient=(max(working, whole_loss.working_bytes), 2 * fresh),
    )
    replica_bytes = float(trained) * precision.parameter.bytes
    others = _fuller(
        layout,
        job,
        on,
        parameters=np.zeros(()),
        expert_parameters=np.zeros(()),
        # a copy with neither gradient nor state of its own
        frozen_parameters=price.frozen_parameters
        + replica_bytes / precision.frozen_bytes,
        activations=(activations, 0.0),
        transient=(working + cache * float(trained), fresh + cache * float(trained)),
    )
    return first, others


def _fuller(
    layout: Layout,
    job: Job,
    on: Machine,
    *,
    parameters: Array,
    expert_parameters: Array,
    frozen_parameters: Array,
    activations: tuple[float, float],
    transient: tuple[float, float],
) -> Memory:
    """The memory of a GPU at the fuller one of two instants."""
    found = memory(
        PeakContents(
            parameters=parameters,
            expert_parameters=expert_parameters,
            frozen_parameters=frozen_parameters,
            gathered_bytes=np.zeros(()),
            activation_bytes=np.array(activations),
            transient_bytes=np.array(transient),
        ),
        policy=StatePolicy(precision=layout.precision, moments=job.moments),
        process=Process(
            device=on.device,
            ranks=np.asarray(layout.gpus),
            fully_shard=on.framework.fully_shard,
            footprint=on.framework.footprint,
        ),
        parallel=data_parallel(layout.stages[0].mesh, zero=0),
        micro_batches=layout.micro_batches,
    )
    return max(found.each(), key=lambda one: float(one.total))


OPTION: Final = "--compare-data-parallel"
NO_GPUS: Final = ("cpu", "tpu")  # on a CPU it runs the module as it is


@dataclass(frozen=True, kw_only=True)
class ComparedProcesses:
    """The same step by `nn.DataParallel` and by `DistributedDataParallel`."""

    single: SingleProcess
    distributed: Estimate

    @property
    def slowdown(self) -> float:
        return self.single.step_time_s / self.distributed.step_time_s

    @property
    def fits(self) -> bool:
        """Whether GPU 0 has room for what it needs at once."""
        return float(self.single.first.needed) <= self.distributed.capacity_bytes

    def document(self) -> dict[str, Any]:
        """The member `data_parallel` of `simulate --json`."""
        single, distributed = self.single, self.distributed
        last = distributed.layout.gpus - 1
        several = "1" if last == 1 else f"1-{last}"
        return {
            "nn.DataParallel": {
                "step_time_s": single.step_time_s,
                "breakdown_s": single.breakdown_s,
                "memory": [
                    {"gpus": "0", **single.first.document()},
                    {"gpus": several, **single.others.document()},
                ],
                "fits": self.fits,
            },
            "DistributedDataParallel": {
                "step_time_s": distributed.step_time_s,
                "memory": [
                    {"gpus": f"0-{last}", **distributed.memory[0].document()},
                ],
                "fits": distributed.fits,
            },
            "slowdown": self.slowdown,
        }


def compare_data_parallel(found: Estimate, on: Machine) -> ComparedProcesses:
    """What the replicas of *found*'s layout take in one process, and in one each.

    Both sum gradients in the weights' format, and keep all states whole.

    Raises Contradiction for a layout with more than data parallelism, and Unsupported
    for a machine or software that `nn.DataParallel` does not run on.
    """
    layout = found.layout
    _require_replicas(layout)
    _require_node(layout.gpus, on)
    both = _whole(layout)
    distributed = estimate(found.job, on.cluster, both, on=on)
    return ComparedProcesses(
        single=single_process(found.job, both, on), distributed=distributed
    )


def _require_replicas(layout: Layout) -> None:
    """Raise Contradiction unless *layout* is replicas on several GPUs and no more."""
    mesh = layout.stages[0].mesh
    alone = mesh.tp * mesh.cp * mesh.ep * mesh.etp == 1 and len(layout.stages) == 1
    if not alone:
        raise Contradiction(
            f"{OPTION}: nn.DataParallel has whole models on the GPUs of one process; "
            "leave --tp, --pp, --cp and --ep at 1"
        )
    if mesh.dp < 2:
        raise Contradiction(f"{OPTION} compares replicas; give --gpus 2 or more")
    if layout.away.anything or layout.away_share:
        raise Contradiction(
            f"{OPTION}: nn.DataParallel offloads nothing; leave --offload out"
        )


def _require_node(gpus: int, on: Machine) -> None:
    kind = on.device.architecture.lower()
    if kind.startswith(NO_GPUS):
        raise Unsupported(
            f"{OPTION}: nn.DataParallel is for GPUs, and {on.device.name} is none; "
            "name a --cluster of GPUs"
        )
    if len(on.cluster.islands) > 1:
        raise Unsupported(
            f"{OPTION}: one process has the GPUs of one node, and {on.cluster.name!r} "
            f"joins {len(on.cluster.islands)} islands; name one of them"
        )
    most = on.island.devices_per_node
    if gpus > most:
        raise Contradiction(
            f"{OPTION}: one process has the GPUs of one node, and {gpus} are more than "
            f"the {most} of {on.cluster.name}; use DistributedDataParallel, or --gpus "
            f"{most}"
        )
    if on.framework.name != DEFAULT:
        raise Unsupported(
            f"{OPTION}: nn.DataParallel is PyTorch's own, and {on.framework.name} does "
            "not use it; leave --framework out"
        )


def _whole(layout: Layout) -> Layout:
    """*layout* without ZeRO, its gradients in the weights' format."""
    (stage,) = layout.stages
    mesh = replace(stage.mesh, dp_replicate=stage.mesh.dp, dp_shard=1)
    plans = {plan: replace(plan, zero=0) for plan in stage.plans}
    return replace(
        layout,
        stages=(
            replace(stage, mesh=mesh, plans=tuple(plans[one] for one in stage.plans)),
        ),
        zero_plus=PLAIN,
        gradient_format="bf16",  # of 16-bit weights: theirs; fp32 ones have fp32
    )
