"""Every way to serve a model with some GPUs; the cheapest within latencies, proven.

    tp, pp, ep      what divides the GPUs and the model; the rest is replicas
    weights         as asked; or in 16 bits, fp8 where the device has it, int8 and int4
    micro-batch     1, 2, 3, 4, 6, 8, 12 … and the largest that fits

Larger passes take longer, so those that are soon enough are the smaller ones. Of these
the largest is priced first, and each other one unless a bound shows that it costs more:
its prompts' time, and the steps of a pass of one sequence.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from time import perf_counter
from typing import Final

from costmodel.inference import (
    InferenceEstimate,
    Passed,
    Question,
    inference_estimate,
    largest_micro_batch,
    passed,
    prompts_together,
    rank_memory,
    resolve,
)
from costmodel.options import QUANTIZATIONS, InferenceOptions, Pins
from planner.inference.options import LatencyOptions
from profiles.commandline import JobOptions
from profiles.errors import Contradiction
from profiles.hardware import Cluster, Format
from profiles.models import Model
from profiles.units import HOUR_S

MILLION: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be served, on what, how soon; *pins* and *options* are not searched
    where they say something."""

    model: Model
    cluster: Cluster
    job: JobOptions
    pins: Pins
    options: InferenceOptions
    latency: LatencyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A way that is within memory and latencies. `value` is dollars for a million new
    tokens, or where the device has no price, GPU-seconds for each."""

    estimate: InferenceEstimate
    value: float

    @property
    def weights(self) -> str:
        """The format that they are stored in."""
        asked = self.estimate.asked
        return asked.stored.quantization or asked.choice.precision


@dataclass(kw_only=True)
class Tally:
    """How many layouts with their batches were looked at, and what became of them.

    `nearest_first_s` and `nearest_token_s` are the shortest of those that fit.
    """

    considered: int = 0
    too_large: int = 0
    too_slow: int = 0
    priced: int = 0
    nearest_first_s: float = inf
    nearest_token_s: float = inf
    least_bytes: float = inf
    reasons: list[str] = field(default_factory=list)

    @property
    def bounded(self) -> int:
        """Those that a bound showed to be no better."""
        return self.considered - self.too_large - self.too_slow - self.priced


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best way of each layout, the cheapest first; `seconds` the search took."""

    ways: tuple[Served, ...]
    tally: Tally
    seconds: float

    @property
    def best_by_weights(self) -> dict[str, Served]:
        """The cheapest way of each format that weights are stored in."""
        best: dict[str, Served] = {}
        for way in self.ways:
            best.setdefault(way.weights, way)
        return best


def search(asked: Asked, sizes: Sequence[int]) -> Found:
    """Price every way on each number of GPUs.

    Raises what `resolve` raises where no way is legal at all.
    """
    begun, tally = perf_counter(), Tally()
    ways = [way for gpus in sizes for way in _ways(asked, gpus, tally)]
    if not tally.considered:
        raise Contradiction(tally.reasons[0] if tally.reasons else _none_divides(asked))
    ways.sort(key=lambda way: (way.value, way.estimate.gpus))
    return Found(ways=tuple(ways), tally=tally, seconds=perf_counter() - begun)


def _none_divides(asked: Asked) -> str:
    pinned = {name: getattr(asked.pins, name) for name in ("tp", "pp", "dp")}
    said = " · ".join(f"{name} {size}" for name, size in pinned.items() if size)
    return f"{said} does not divide these --gpus; give degrees whose product does"


def unit_price(asked: Question) -> float:
    """Of a GPU's second on each token: dollars for a million, or 1."""
    dollars = asked.machine.island.device_dollars_per_h
    return 1.0 if dollars is None else dollars / HOUR_S * MILLION


def _ways(asked: Asked, gpus: int, tally: Tally) -> Iterator[Served]:
    """The best way of each layout on so many *gpus*."""
    for layout in _layouts(asked, gpus, tally):
        sizes = _sizes_of_passes(asked, layout)
        tally.considered += max(len(sizes), 1)
        if not sizes:
            tally.too_large += 1
            least = max(held.total for held in rank_memory(layout))
            tally.least_bytes = min(tally.least_bytes, least)
            continue
        candidates = Candidates(layout=layout, sizes=sizes)
        tally.nearest_first_s = min(tally.nearest_first_s, candidates.first_s(0))
        tally.nearest_token_s = min(tally.nearest_token_s, candidates.token_s(0))
        soon = candidates.soon(asked.latency)
        tally.too_slow += len(sizes) - soon
        best: Served | None = None
        for place in reversed(range(soon)):
            if best is not None and candidates.least(place) >= best.value:
                continue
            way = _priced(_with_batch(layout, sizes[place]))
            tally.priced += 1
            best = way if best is None or way.value < best.value else best
        if best is not None:
            yield best


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """A layout with each of some *sizes* of a pass, smallest first."""

    layout: Question
    sizes: Sequence[int]

    def soon(self, latency: LatencyOptions) -> int:
        """How many, from the smallest on, are within *latency*."""
        first, token = latency.max_first_token_s, latency.max_token_s

        def is_late(place: int) -> bool:
            return (first is not None and self.first_s(place) > first) or (
                token is not None and self.token_s(place) > token
            )

        return bisect(range(len(self.sizes)), False, key=is_late)

    def first_s(self, place: int) -> float:
        """Seconds of a prefill pass."""
        return float(self._prefill(place).latency_s)

    def token_s(self, place: int) -> float:
        """Seconds of a step at the whole context."""
        asked = self._sized(place)
        found = passed(asked, context=asked.job.seq_len)
        return float(found.step_s(asked.micro_batches))

    def least(self, place: int) -> float:
        """No less than what a token costs."""
        layout, size, prefill = self.layout, self.sizes[place], self._prefill(place)
        together = prompts_together(layout, size)
        passes = layout.micro_batches * -(-size // together)
        prefill_s = float(prefill.latency_s + (passes - 1) * prefill.slowest_s)
        total_s = prefill_s + (layout.new_tokens - 1) * self._least_step_s
        replica = layout.choice.tp * layout.choice.pp
        tokens = layout.micro_batches * size * layout.new_tokens
        return total_s * replica / tokens * unit_price(layout)

    @cached_property
    def _least_step_s(self) -> float:
        one = self._sized(0)
        found = passed(one, context=one.prompt_len + 1)
        return float(found.step_s(one.micro_batches))

    def _prefill(self, place: int) -> Passed:
        count = prompts_together(self.layout, self.sizes[place])
        if count not in self._prefills:
            self._prefills[count] = passed(self.layout, prompts=count)
        return self._prefills[count]

    @cached_property
    def _prefills(self) -> dict[int, Passed]:
        return {}

    def _sized(self, place: int) -> Question:
        choice = replace(self.layout.choice, micro_batch=self.sizes[place])
        return replace(self.layout, choice=choice)


def _priced(one: Question) -> Served:
    found = inference_estimate(one)
    tokens = one.job.global_batch * one.new_tokens
    gpu_s = found.total_s * found.gpus / tokens
    return Served(estimate=found, value=gpu_s * unit_price(one))


def _layouts(asked: Asked, gpus: int, tally: Tally) -> Iterator[Question]:
    """Every legal layout on *gpus*, with one sequence a pass."""
    pins = asked.pins
    for tp in _sizes(pins.tp, gpus):
        for pp in _sizes(pins.pp, gpus // tp if gpus % tp == 0 else 0):
            dp = gpus // (tp * pp)
            if pins.dp not in (None, dp):
                continue
            for ep in _expert_sizes(asked, tp, dp):
                trial = replace(pins, tp=tp, pp=pp, dp=dp, ep=ep)
                if _searches_batch(asked):
                    trial = replace(trial, micro_batch=1)
                for precision, options in _formats(asked):
                    job = replace(asked.job, gpus=gpus, precision=precision)
                    try:
                        yield resolve(asked.model, asked.cluster, job, trial, options)
                    except Contradiction as error:
                        tally.reasons.append(str(error))


def _sizes(pinned: int | None, of: int) -> Iterator[int]:
    """The divisors of *of*, or the one that is pinned if it is one."""
    found = (size for size in range(1, of + 1) if of % size == 0)
    return (size for size in found if pinned in (None, size))


def _expert_sizes(asked: Asked, tp: int, dp: int) -> Iterator[int | None]:
    """Ranks over which experts lie: 1 (each is cut), one replica's or several's."""
    moe = getattr(asked.model.spec, "moe", None)
    if asked.pins.ep is not None or moe is None:
        yield asked.pins.ep
        return
    yield 1
    for several in _sizes(None, dp):
        if tp * several > 1 and moe.experts % (tp * several) == 0:
            yield tp * several


def _formats(asked: Asked) -> Iterator[tuple[str | None, InferenceOptions]]:
    """Precisions, with the options as they are, and each quantization that nobody
    pinned."""
    options, pinned = asked.options, asked.job.precision
    yield pinned, options
    if options.quantization is not None:
        return
    if pinned is None and Format.FP8.value in asked.cluster.device.peak:
        yield Format.FP8.value, options
    if pinned in (None, "fp16", "bf16"):
        for name in QUANTIZATIONS:
            yield pinned, replace(options, quantization=name)


def _searches_batch(asked: Asked) -> bool:
    return asked.job.global_batch is None and asked.pins.micro_batch is None


def _sizes_of_passes(asked: Asked, layout: Question) -> list[int]:
    """Sequences of a pass that are looked at; none where not one fits."""
    most = largest_micro_batch(layout)
    if _searches_batch(asked):
        return batch_sizes(most)
    own = layout.choice.micro_batch
    return [own] if own <= most else []


def _with_batch(layout: Question, size: int) -> Question:
    batch = layout.choice.dp * layout.micro_batches * size
    searched = {"micro_batch", "global_batch"}
    return replace(
        layout,
        job=replace(layout.job, global_batch=batch),
        choice=replace(layout.choice, micro_batch=size),
        assumed={k: v for k, v in layout.assumed.items() if k not in searched},
    )


def batch_sizes(most: int) -> list[int]:
    """Powers of two, one and a half times each, and the largest.

    >>> batch_sizes(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    powers = [2**power for power in range(most.bit_length())]
    found = {*powers, *(3 * power // 2 for power in powers[1:]), most}
    return sorted(size for size in found if 0 < size <= most)
