"""Whole transformer layers on this device, timed and priced from a profile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from benchmarks.fit.layer_price import layer_price
from costmodel.machine.assembly import Machine
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from runtime.models.decoder import Layer, decoder_of, initialise

MOST_LAYERS = 8  # in a row: together they are larger than a cache
ROUNDS, WARM_UP = 15, 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Seconds of one layer's pass, measured and priced."""

    model: str
    micro_batch: int
    direction: str
    measured_s: float
    priced_s: float

    @property
    def error(self) -> float:
        return self.priced_s / self.measured_s - 1.0


def layer_times(
    job: Job, on: Machine, number: str, device: str, sizes: tuple[int, ...]
) -> Iterator[LayerTime]:
    """A layer of *job* at each micro-batch of *sizes*: forward, then backward."""
    spec = decoder_of(job)
    layers = _layers(spec, number, device)
    for size in sizes:
        measured = _timed(layers, spec, job.seq_len, size, device)
        priced = layer_price(
            job.graph.block("layer"),
            on,
            number,
            seq_len=job.seq_len,
            micro_batch=size,
        )
        for direction, seconds, predicted in (
            ("forward", measured[0], priced.forward_s),
            ("backward", measured[1], priced.backward_s),
        ):
            yield LayerTime(
                model=job.model,
                micro_batch=size,
                direction=direction,
                measured_s=seconds,
                priced_s=float(predicted),
            )


def _layers(spec: DecoderSpec, number: str, device: str) -> nn.Sequential:
    with torch.device("meta"):
        count = min(spec.layers, MOST_LAYERS)
        made = nn.Sequential(*(Layer(spec, index) for index in range(count)))
    initialise(made, prefix="", layers=spec.layers, seed=0, device=torch.device(device))
    return made.to(DTYPES[number])


def _timed(
    layers: nn.Sequential, spec: DecoderSpec, seq_len: int, size: int, device: str
) -> tuple[float, float]:
    """Median seconds of a layer's forward and backward."""
    like = next(layers.parameters())
    shape, seen = (size, seq_len, spec.hidden), []
    for _ in range(WARM_UP + ROUNDS):
        stream = torch.randn(shape, dtype=like.dtype, device=device, requires_grad=True)
        gradient = torch.randn_like(stream)
        layers.zero_grad(set_to_none=True)
        began = _now(device)
        made = layers(stream)
        between = _now(device)
        made.backward(gradient)
        ended = _now(device)
        seen.append((between - began, ended - between))
    forward, backward = zip(*seen[WARM_UP:], strict=True)
    return median(forward) / len(layers), median(backward) / len(layers)


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
