"""What inference costs: prefill, decoding, and a whole batch of answers.

    question → price of each distinct block → stages → passes through the pipeline

Stages work one after another on a micro-batch; where several are on their way, each
waits for the slowest stage: a step takes the longer of all stages with their sends, and
micro-batches × slowest stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from costmodel.inference.kv_cache import token_elements
from costmodel.inference.memory import (
    Held,
    fits,
    largest_micro_batch,
    prompts_together,
    rank_memory,
    stages_of,
)
from costmodel.inference.passes import HEAD, Pass, PassPrice, block_pass, served
from costmodel.inference.question import Question
from costmodel.machine import shares
from costmodel.simulation import CONVENTIONS, operator_flops
from profiles.arrays import Array
from profiles.models import Job

BOUNDS: Final = ("memory_bandwidth", "compute", "links", "host")
BREAKDOWN: Final = (
    *("compute", "tensor_comm", "expert_comm", "pipeline_comm", "host", "waiting"),
)
_SAMPLED_CONTEXTS: Final = 65


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A pass of one micro-batch through all stages, on one rank of each.

    `stages_s` are what the stages take, `sends_s` what is sent between them; `bounds_s`
    what each resource alone would take for all of them, one after another: bytes of
    weights and cache at the datasheet's bandwidth, FLOPs at its peak, messages, a host.
    """

    stages_s: tuple[Array, ...]
    sends_s: Array
    parts_s: Mapping[str, Array]
    bounds_s: Mapping[str, Array]
    weight_bytes: Array
    cache_bytes: Array

    @property
    def latency_s(self) -> Array:
        return np.asarray(sum(self.stages_s) + self.sends_s)

    @property
    def slowest_s(self) -> Array:
        return np.asarray(np.max(np.broadcast_arrays(*self.stages_s), axis=0))

    @property
    def bound(self) -> str:
        """The resource that alone would take longest."""
        return max(BOUNDS, key=lambda name: float(np.max(self.bounds_s[name])))

    def step_s(self, micro_batches: int) -> Array:
        """Until a micro-batch is through once more, with so many on their way."""
        return np.asarray(np.maximum(self.latency_s, micro_batches * self.slowest_s))

    def breakdown_s(self, total_s: float) -> dict[str, float]:
        """Where *total_s* goes: the parts of a pass, and waiting for others."""
        found = {name: float(self.parts_s[name]) for name in BREAKDOWN[:-1]}
        return {**found, "waiting": max(total_s - sum(found.values()), 0.0)}

    def document(self, total_s: float) -> dict[str, Any]:
        """What bounds the pass, and where *total_s* goes."""
        return {
            "bound": self.bound,
            "bounds_s": {name: float(self.bounds_s[name]) for name in BOUNDS},
            "breakdown_s": self.breakdown_s(total_s),
        }


def passed(
    asked: Question, *, prompts: int = 0, context: Any = None, fresh: int = 1
) -> Passed:
    """A prefill pass of so many *prompts*, or a decode pass of *fresh* new tokens of
    each sequence at *context* tokens."""
    decodes = context is not None
    degrees = (
        asked.degrees(asked.choice.micro_batch * fresh, 1)
        if decodes
        else asked.degrees(prompts, asked.prompt_len)
    )
    of = Pass(
        degrees=degrees,
        stored=asked.stored,
        cache=asked.cache,
        machine=asked.machine,
        context=np.asarray(context, dtype=float) if decodes else None,
        fresh=fresh,
        graphs=decodes and asked.graphs,
    )
    floor = asked.machine.framework.host.floor
    prices = {one.name: block_pass(one, of) for one in asked.job.graph.distinct()}
    seconds = {name: price.work.total_s(floor) for name, price in prices.items()}
    stages = stages_of(asked)
    stages_s = tuple(
        np.asarray(sum(count * seconds[name] for name, count in stage.items()))
        for stage in stages
    )
    total = PassPrice()
    for stage in stages:
        for name, count in stage.items():
            total = total + prices[name] * count
    sends_s = _sends_s(asked, degrees.micro_batch * degrees.seq_len)
    work, device = total.work, asked.machine.device
    peak = device.peak_flops_per_s(asked.precision.matmul)
    read = total.weight_bytes + total.cache_bytes
    sent_s = work.tensor_comm_s + work.expert_comm_s
    return Passed(
        stages_s=stages_s,
        sends_s=sends_s,
        parts_s={
            "compute": work.compute_s,
            "tensor_comm": work.tensor_comm_s,
            "expert_comm": work.expert_comm_s,
            "pipeline_comm": sends_s,
            "host": np.maximum(sum(stages_s) - work.device_s, 0.0),
        },
        bounds_s={
            "memory_bandwidth": read / device.memory_bytes_per_s,
            "compute": work.flops / peak,
            "links": sent_s + sends_s,
            "host": np.asarray(work.host_s, dtype=float),
        },
        weight_bytes=total.weight_bytes,
        cache_bytes=total.cache_bytes,
    )


def _sends_s(asked: Question, tokens: Array) -> Array:
    """Seconds of a micro-batch between all stages of a replica, whose ranks lie side by
    side; each tp rank sends the whole of what layers hand on."""
    tp, pp, island = asked.choice.tp, asked.choice.pp, asked.machine.island
    size = tokens * asked.job.graph.narrowest * asked.precision.activation.bytes
    ends = np.arange(1, pp) * tp
    whole = (island.domain % (tp * pp) == 0) | ((tp * pp) % island.domain == 0)
    far = (ends % island.domain == 0) if whole else np.ones(len(ends), dtype=bool)
    sent = asked.machine.send(
        np.asarray(size, dtype=float), far=far, shares=shares(np.asarray(tp), island)
    )
    return np.asarray(np.sum(np.broadcast_to(sent.seconds, far.shape)))


@dataclass(frozen=True, kw_only=True)
class InferenceEstimate:
    """A question with its prices."""

    asked: Question
    held: tuple[Held, ...]
    prefill: Passed
    decode: Passed
    generation_s: float

    @property
    def fits(self) -> bool:
        return fits(self.asked, self.held)

    @property
    def gpus(self) -> int:
        return self.asked.choice.gpus

    @property
    def prompts_together(self) -> int:
        """Prompts of a prefill pass."""
        return prompts_together(self.asked, self.asked.choice.micro_batch)

    @property
    def prefill_s(self) -> float:
        """Until every prompt of the batch has been read."""
        asked, size = self.asked, self.asked.choice.micro_batch
        passes = asked.micro_batches * -(-size // self.prompts_together)
        return float(self.prefill.latency_s + (passes - 1) * self.prefill.slowest_s)

    @property
    def step_s(self) -> float:
        """Until every sequence has one more token, at the whole context."""
        return float(self.decode.step_s(self.asked.micro_batches))

    @property
    def total_s(self) -> float:
        """Until every sequence has all its new tokens."""
        return self.prefill_s + self.generation_s

    @property
    def least_step_s(self) -> float:
        """Weights and cache at the datasheet's bandwidth: no step is faster."""
        return float(self.decode.bounds_s["memory_bandwidth"])

    @property
    def peak_memory_bytes(self) -> float:
        """Of the fullest stage's ranks."""
        return max(one.total for one in self.held)

    @cached_property
    def largest_global_batch(self) -> int:
        """That fits, in as many micro-batches; 0 where none does."""
        return (
            largest_micro_batch(self.asked)
            * self.asked.micro_batches
            * self.asked.choice.dp
        )

    @property
    def prefill_mfu(self) -> float:
        """FLOPs that the prompts need over what the dense peak would do meanwhile."""
        asked = self.asked
        needed = prefill_flops(asked.job, asked.prompt_len) * asked.job.global_batch
        peak = asked.machine.device.peak_flops_per_s(asked.precision.matmul)
        return needed / (self.prefill_s * self.gpus * peak)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of the layout, and of the links behind its price."""
        asked, said = self.asked, list[str]()
        heads = {block.kv_heads for block in asked.job.graph.kinds.values()}
        tp, latent = asked.choice.tp, getattr(asked.job.spec, "mla", None) is not None
        if latent and tp > 1:
            said.append(
                f"each of the {tp} tp ranks keeps all latents: they have no heads to "
                "split"
            )
        elif heads and max(heads) < tp:
            said.append(
                f"tp {tp} exceeds the {max(heads)} key-value heads: each is replicated "
                f"on {tp // max(heads)} ranks"
            )
        return (*said, *asked.machine.remarks())

    def document(self) -> dict[str, Any]:
        """What `simulate --inference --json` prints; units are in the names."""
        asked = self.asked
        batch = asked.job.global_batch
        return {
            "fits": self.fits,
            "peak_memory_bytes": self.peak_memory_bytes,
            "capacity_bytes": asked.machine.device.capacity_bytes,
            "largest_global_batch": self.largest_global_batch,
            "memory": [
                {"stage": stage, **held.document()}
                for stage, held in enumerate(self.held)
            ],
            "kv_cache_bytes_per_token": token_bytes(asked),
            "context_tokens": asked.job.seq_len,
            "prompt_tokens": asked.prompt_len,
            "new_tokens": asked.new_tokens,
            "prefill": self._prefill_document(),
            "decode": {
                "step_time_s": self.step_s,
                "tokens_per_s": batch / self.step_s,
                "tokens_per_s_per_gpu": batch / self.step_s / self.gpus,
                "least_step_time_s": self.least_step_s,
                "weight_bytes_read": float(self.decode.weight_bytes),
                "kv_cache_bytes_read": float(self.decode.cache_bytes),
                **self.decode.document(self.step_s),
            },
            "generation": {
                "time_s": self.total_s,
                "decode_time_s": self.generation_s,
                "tokens_per_s": batch * asked.new_tokens / self.total_s,
            },
            "layout": asked.document(),
            "assumed": dict(asked.assumed),
            "warnings": list(self.warnings),
        }

    def _prefill_document(self) -> dict[str, Any]:
        asked, first_s = self.asked, float(self.prefill.latency_s)
        per_s = asked.job.global_batch * asked.prompt_len / self.prefill_s
        return {
            "time_s": self.prefill_s,
            "time_to_first_token_s": first_s,
            "prompts_together": self.prompts_together,
            "tokens_per_s": per_s,
            "tokens_per_s_per_gpu": per_s / self.gpus,
            "flops_per_token": prefill_flops(asked.job, asked.prompt_len)
            / asked.prompt_len,
            "mfu": self.prefill_mfu,
            **self.prefill.document(first_s),
        }


def inference_estimate(asked: Question) -> InferenceEstimate:
    """Price a question about inference."""
    together = prompts_together(asked, asked.choice.micro_batch)
    return InferenceEstimate(
        asked=asked,
        held=rank_memory(asked),
        prefill=passed(asked, prompts=together),
        decode=passed(asked, context=asked.job.seq_len),
        generation_s=generation_s(asked),
    )


def generation_s(asked: Question) -> float:
    """Seconds of all new tokens but the first, which the prefill makes."""
    return over_contexts(
        asked,
        lambda context: passed(asked, context=context).step_s(asked.micro_batches),
    )


def over_contexts(asked: Question, step_s: Callable[[Array], Array]) -> float:
    """Seconds of as many steps as there are new tokens but one: the mean of *step_s*
    over the contexts that they have."""
    steps = asked.new_tokens - 1
    if not steps:
        return 0.0
    first, last = asked.prompt_len + 1, asked.prompt_len + steps
    count = min(steps, _SAMPLED_CONTEXTS)
    contexts = np.linspace(first, last, count)
    taken = np.broadcast_to(step_s(contexts), contexts.shape)
    if count == steps:
        return float(np.sum(taken))
    between = (taken[1:] + taken[:-1]) / 2
    return steps * float(np.mean(between))


def prefill_flops(job: Job, prompt_len: int) -> float:
    """FLOPs of reading one prompt: two a weight that a token meets, attention's causal
    half beside; the head sees the last token alone."""
    one = Job(model=job.model, spec=job.spec, seq_len=prompt_len, global_batch=1)
    causal = CONVENTIONS["causal"]
    return sum(
        count
        * operator_flops(item, block, one, causal)
        / (prompt_len if block.name == HEAD else 1)
        for block, count in one.graph.blocks
        for item in served(block)
    )


def token_bytes(asked: Question) -> float:
    """Bytes of the cache for each token of a sequence, in all layers of the model."""
    return token_elements(asked.job.graph.layers) * asked.cache.bytes
