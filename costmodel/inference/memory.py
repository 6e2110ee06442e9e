"""Bytes that a rank needs to serve: no gradients, no optimizer, nothing kept for them.

parameters      every weight, as it is stored; of experts all that lie there
kv_cache        the context of every sequence that the replica has
activations     the largest operator's input and output beside the stream, of the pass
                that has more: prompts that are read together, or a decoded batch
communication   NCCL's buffers        reserve   the allocator's rounding of activations
context         what the driver keeps of a process
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from costmodel.inference.kv_cache import cached_elements, span
from costmodel.inference.passes import HEAD, routed_degrees, served
from costmodel.inference.question import Question
from costmodel.layout import split_layers, stage_cuts
from costmodel.operators import (
    Degrees,
    OnRank,
    beside,
    entry_bytes,
    internal,
    tensor_bytes,
)
from costmodel.stages import CONTEXT_BYTES, FRAGMENTATION, communicator_bytes, own_bytes
from profiles.hardware import Format, Precision
from profiles.models import Block, Kind, Operator, Tensor

# Tokens of the prompts that are read together, one at least: vLLM's budget of a pass
# on GPUs of 70 GiB and more (max_num_batched_tokens, its engine arguments).
PREFILL_TOKENS: Final = 8192
LARGEST_BATCH: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of one rank by kind."""

    parameters: float
    kv_cache: float
    activations: float
    communication: float
    reserve: float
    context: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, item.name) for item in fields(self)))

    def document(self) -> dict[str, float]:
        """Bytes by kind, and their sum."""
        kinds = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**kinds, "total": self.total}


def stages_of(asked: Question) -> list[Mapping[str, int]]:
    """How many of each block every stage has, by the block's name."""
    layers = [block.name for block in asked.job.graph.layers]
    counts = split_layers(asked.job.graph.body, asked.choice.pp)
    return [Counter(layers[first:end]) for first, end in stage_cuts(counts)]


def prompts_together(asked: Question, micro_batch: int) -> int:
    """Prompts of a prefill pass."""
    return min(micro_batch, max(PREFILL_TOKENS // asked.prompt_len, 1))


def rank_memory(asked: Question, micro_batch: int | None = None) -> tuple[Held, ...]:
    """Bytes of a rank of each stage; *micro_batch* instead of the one asked for."""
    size = micro_batch or asked.choice.micro_batch
    blocks = {block.name: block for block in asked.job.graph.distinct()}
    together = prompts_together(asked, size)
    prefill = asked.degrees(together, asked.prompt_len)
    decode = asked.degrees(size, 1)
    found = []
    for stage in stages_of(asked):
        here = [(blocks[name], count) for name, count in stage.items()]
        held = [block for block, _ in here]
        activations = max(
            _working_bytes(asked, held, prefill), _working_bytes(asked, held, decode)
        )
        device = asked.machine.device
        found.append(
            Held(
                parameters=_weight_bytes(asked, here),
                kv_cache=_cache_bytes(asked, here) * asked.micro_batches * size,
                activations=activations,
                communication=_communicators(asked),
                reserve=FRAGMENTATION * activations,
                context=own_bytes(device, "context", CONTEXT_BYTES),
            )
        )
    return tuple(found)


def fits(asked: Question, held: Sequence[Held]) -> bool:
    """Whether every stage fits into its device."""
    return all(one.total <= asked.machine.device.capacity_bytes for one in held)


def largest_micro_batch(asked: Question) -> int:
    """The most sequences of a pass that fit; 0 if not even one does."""

    def is_too_large(size: int) -> bool:
        return not fits(asked, rank_memory(asked, size))

    end = 1
    while end < LARGEST_BATCH and not is_too_large(end):
        end *= 2
    return end // 2 + bisect(range(end // 2 + 1, end), False, key=is_too_large)


def _weight_bytes(asked: Question, here: Iterable[tuple[Block, int]]) -> float:
    """Of all blocks of a stage; a table that is the head too is there once."""
    degrees = asked.degrees(1, 1)
    total, names = 0.0, set()
    for block, count in here:
        names.add(block.name)
        for operator in served(block):
            held = asked.stored.held_bytes(operator, block, degrees)
            total += count * float(held)
    for (first, table), (second, _) in asked.job.graph.tied:
        if {first, second} <= names:
            holder = asked.job.graph.block(first)
            twice = holder.operator(table)
            total -= float(asked.stored.held_bytes(twice, holder, degrees))
    return total


def _cache_bytes(asked: Question, here: Iterable[tuple[Block, int]]) -> float:
    """Of one sequence at the whole context."""
    elements = sum(
        count
        * cached_elements(block, asked.choice.tp)
        * float(span(block, asked.job.seq_len))
        for block, count in here
    )
    return elements * asked.cache.bytes


def _working_bytes(asked: Question, blocks: Iterable[Block], degrees: Degrees) -> float:
    """The most that is alive in a pass: an operator's input and output, with what it
    works with beside them, and the stream that goes round it; logits in fp32 too."""
    precision, most = asked.precision, 0.0
    for block in blocks:
        cut = asked.degrees(degrees.micro_batch, 1) if block.name == HEAD else degrees
        stream = float(entry_bytes(block, cut, precision))
        for operator in served(block):
            given = sum(_bytes(item, block, cut, precision) for item in operator.inputs)
            asks = _beside_bytes(operator, block, cut, asked)
            made = _bytes(operator.output, block, cut, precision)
            if "vocab" in operator.columns:
                ranks = asked.choice.tp  # gathered, and once in fp32
                made *= ranks * (1 + Format.FP32.bytes / precision.activation.bytes)
            most = max(most, stream + max(given, asks) + made)
    return most


def _bytes(
    tensor: Tensor, block: Block, degrees: Degrees, precision: Precision
) -> float:
    cut = routed_degrees(degrees) if "routed" in tensor.dims else degrees
    return float(tensor_bytes(tensor, block, cut, precision))


def _beside_bytes(
    operator: Operator, block: Block, degrees: Degrees, asked: Question
) -> float:
    """What an operator works with: scores where attention writes them."""
    at = OnRank(operator, block, degrees, asked.precision, asked.machine)
    found = float(np.max(beside(at)))
    if operator.kind is Kind.ATTENTION:
        given = sum(
            _bytes(item, block, degrees, asked.precision) for item in operator.inputs
        )
        found += given + float(internal(at)["attention_core"])
    return found


def _communicators(asked: Question) -> float:
    choice = asked.choice
    ranks = max(choice.tp * choice.pp, choice.ep)
    groups = (choice.tp > 1) + (choice.pp > 1) + (choice.ep > choice.tp)
    found = communicator_bytes(
        asked.machine.device, np.asarray(ranks), one_group=groups <= 1
    )
    return float(np.max(found))
