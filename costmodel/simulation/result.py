"""`Answer`: what a layout costs, in seconds and bytes, and what follows from those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from costmodel.layout import Layout
from costmodel.schedule import schedule_called, versions_held
from costmodel.simulation.flops import MEGATRON, Convention, block_flops, model_flops
from costmodel.simulation.uncertainty import P90, PriceSources, Spread, probability_fits
from costmodel.stages import Away, Memory, Reliability, recomputed_operators
from profiles.models import Job
from profiles.notebook import html_table
from profiles.units import TFLOPS, format_bytes, format_seconds


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A layout's price. `memory` has one entry a pipeline rank, bytes by kind, and
    `capacities_bytes` what the smallest device of each offers."""

    job: Job
    layout: Layout
    step_time_s: float
    breakdown_s: Mapping[str, float]
    memory: tuple[Memory, ...]
    capacities_bytes: tuple[float, ...]
    peak_flops_per_s: float
    spread: Spread
    device: str
    device_cost: float | None = None  # dollars for one device and hour
    device_power_w: float | None = None
    reliability: Reliability | None = None  # None where nobody says
    away: Away | None = None  # what is offloaded
    price_sources: PriceSources | None = None  # None without a profile
    stops_early: bool = False  # recompute, at the last tensor that is needed
    counted: Convention = MEGATRON
    assumed: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @cached_property
    def peak_memory_bytes(self) -> float:
        """What the device would show on the fullest rank."""
        return max(float(item.total) for item in self.memory)

    @cached_property
    def peak_needed_bytes(self) -> float:
        """What has to be there at once on the rank that needs most."""
        return max(float(item.needed) for item in self.memory)

    @cached_property
    def peak_secured_bytes(self) -> float:
        """The same with the margin that is to be left free."""
        return max(float(item.secured) for item in self.memory)

    @cached_property
    def peak_reserved_bytes(self) -> float:
        return max(float(item.allocated + item.reserve) for item in self.memory)

    @cached_property
    def peak_allocated_bytes(self) -> float:
        return max(float(item.allocated) for item in self.memory)

    @property
    def fits(self) -> bool:
        """On every device; and on the hosts, what is offloaded to them."""
        return (self.away is None or self.away.fits) and all(
            float(item.needed) <= capacity
            for item, capacity in zip(self.memory, self.capacities_bytes, strict=True)
        )

    @property
    def capacity_bytes(self) -> float:
        """What the device offers; of unlike ones, the one with the least to spare."""
        pairs = zip(self.capacities_bytes, self.memory, strict=True)
        return min(pairs, key=lambda pair: pair[0] / float(pair[1].needed))[0]

    @property
    def staleness(self) -> dict[str, list[float]] | None:
        """By pipeline rank, how many updates old the weights are that a gradient is
        made with, on average, and how many versions of them are kept; None where steps
        are flushed."""
        pp, m = self.layout.pp, self.layout.micro_batches
        stale = schedule_called(self.layout.schedule).stale
        if stale is None:
            return None
        return {
            "updates": [stale.updates_late(rank, pp, m) for rank in range(pp)],
            "versions": versions_held(self.layout.schedule, pp, m).tolist(),
        }

    @cached_property
    def model_flops(self) -> float:
        """Of a step, without recompute, by the convention in which they are counted."""
        return model_flops(self.job, self.counted)

    @cached_property
    def hardware_flops(self) -> float:
        """The same with what is recomputed."""
        again = recomputed_flops(
            self.job, self.layout, stops_early=self.stops_early, counted=self.counted
        )
        return self.model_flops + again

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.job.tokens / self.step_time_s / self.layout.gpus

    @property
    def model_flops_per_s_per_gpu(self) -> float:
        return self.model_flops / self.step_time_s / self.layout.gpus

    @property
    def hardware_flops_per_s_per_gpu(self) -> float:
        return self.hardware_flops / self.step_time_s / self.layout.gpus

    @property
    def mfu(self) -> float:
        return self.model_flops_per_s_per_gpu / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        return self.hardware_flops_per_s_per_gpu / self.peak_flops_per_s

    @property
    def interval_s(self) -> tuple[float, float]:
        """p10 and p90 of the step's seconds."""
        low, high = self.spread.step_time
        return self.step_time_s * low, self.step_time_s * high

    @cached_property
    def probability_fits(self) -> float:
        """The odds that what is needed at once is no more than there is, on the rank
        where that is least sure."""
        return min(
            probability_fits(float(item.needed), float(item.spread), capacity)
            for item, capacity in zip(self.memory, self.capacities_bytes, strict=True)
        )

    @property
    def interval(self) -> dict[str, Any]:
        """p10 and p90 from the calibration's residuals, and the odds of fitting."""
        fullest = max(self.memory, key=lambda item: float(item.total))
        peak, half = float(fullest.total), P90 * float(fullest.spread)
        return {
            "step_time_s": list(self.interval_s),
            "peak_memory_bytes": [max(peak - half, 0.0), peak + half],
            "probability_fits": self.probability_fits,
        }

    def document(self) -> dict[str, Any]:
        """What `simulate --json` prints."""
        return {
            "step_time_s": self.step_time_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "samples_per_s": self.job.global_batch / self.step_time_s,
            "model_tflops_per_gpu": self.model_flops_per_s_per_gpu / TFLOPS,
            "hardware_tflops_per_gpu": self.hardware_flops_per_s_per_gpu / TFLOPS,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "flops_convention": str(self.counted),
            "peak_flops_used": self.peak_flops_per_s,
            "fits": self.fits,
            "peak_memory_bytes": self.peak_memory_bytes,
            "peak_needed_bytes": self.peak_needed_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "capacity_bytes": self.capacity_bytes,
            "offloaded": self.away and self.away.document(),
            "memory": [
                {"stage": rank, **item.document()}
                for rank, item in enumerate(self.memory)
            ],
            "breakdown_s": dict(self.breakdown_s),
            "interval": self.interval,
            "price_sources": self.price_sources and self.price_sources.document(),
            **({"staleness": self.staleness} if self.staleness else {}),
            "layout": self.layout.to_dict(),
            "assumed": dict(self.assumed),
            "warnings": list(self.warnings),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values of JSON: what `simulate --json` prints; seconds, bytes, FLOP."""
        return self.document()

    def _repr_html_(self) -> str:
        """The answer in a few lines, for a notebook."""
        low_s, high_s = self.interval_s
        layout, within = self.layout, "fits in" if self.fits else "does not fit in"
        degrees = {
            name: size
            for name, size in layout.summary.items()
            if name in ("tp", "pp", "dp", "cp", "ep") and size != 1
        }
        split = " · ".join(
            f"{name} {'mixed' if size is None else size}"
            for name, size in degrees.items()
        )
        rows = {
            "layout": f"{split or 'one device'}, {layout.schedule}, "
            f"{layout.micro_batches} micro-batches",
            "step time": f"{format_seconds(self.step_time_s)} "
            f"({format_seconds(low_s)} – {format_seconds(high_s)})",
            "throughput": f"{self.tokens_per_s_per_gpu:,.0f} tokens/s per GPU",
            "utilisation": f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%}",
            "peak memory": f"{format_bytes(self.peak_memory_bytes)}, {within} "
            f"{format_bytes(self.capacity_bytes)} "
            f"(probability {self.probability_fits:.0%})",
        }
        if self.warnings:
            rows["warnings"] = "; ".join(self.warnings)
        title = (
            f"{self.job.model} on {layout.gpus} × {self.device}: {self.job.step_words}"
        )
        return html_table(title, rows.items())


def recomputed_flops(
    job: Job,
    layout: Layout,
    *,
    stops_early: bool = False,
    counted: Convention = MEGATRON,
) -> float:
    """Forward FLOPs of a step that are done twice, in the model's convention."""
    blocks = dict(zip(job.graph.layer_names, job.graph.layers, strict=True))
    plans = {id(plan): plan for stage in layout.stages for plan in stage.plans}
    redone = {
        key: plan.retention for key, plan in plans.items() if plan.retention.recomputed
    }
    if not redone:
        return 0.0
    counts = Counter(
        (id(blocks[name]), id(plan))
        for stage in layout.stages
        for name, plan in zip(stage.layers, stage.plans, strict=True)
        if id(plan) in redone
    )
    by_id = {id(block): block for block in job.graph.distinct()}
    total = 0.0
    for (number, plan), count in counts.items():
        block = by_id[number]
        again = recomputed_operators(
            block, redone[plan].recomputed, stops_early=stops_early
        )
        total += count * block_flops(block, job, frozenset(again), counted)
    return total
