"""How the time of an answer grows with GPUs, with passes and with layers.

    python benchmarks/scale.py

Milliseconds of one core for one layout: spelled out, priced and simulated action by
action, its schedule compiled before (cold: compiled on the way). Then rows a second of
the closed form, for columns of random legal layouts of the largest questions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from costmodel.batched.pricing import price
from costmodel.layout.strategy import Columns, Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import estimate
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

WHERE = cluster("dgx-h100")
ON = machine(WHERE)
BASE = Uniform(tp=8, pp=8, dp=1, micro_batch=1, sequence_parallel=True)
REPEATS = 3
ROWS = 50_000


def job_of(layers: int, global_batch: int) -> Job:
    """A decoder as wide as GPT-3, with so many layers."""
    spec: Any = replace(model("gpt-175b").spec, layers=layers)  # type: ignore[type-var]
    return Job(model="gpt", spec=spec, seq_len=2048, global_batch=global_batch)


def timed_ms(job: Job, choice: Uniform) -> tuple[float, float]:
    """(cold, warm) milliseconds of one estimate."""
    times = []
    for _ in range(1 + REPEATS):
        start = process_time()
        layout = spell_out(choice, job.graph, job.global_batch)
        estimate(job, WHERE, layout, on=ON)
        times.append((process_time() - start) * 1e3)
    return times[0], min(times[1:])


def show(title: str, cases: Iterable[tuple[str, int, int, Uniform]]) -> None:
    """A line for each (words, layers, micro-batches, layout)."""
    print(f"\n{title:34}{'GPUs':>9}{'passes':>10}{'cold':>12}{'warm':>12}")
    for words, layers, m, choice in cases:
        job = job_of(layers, m * choice.dp * choice.micro_batch)
        cold, warm = timed_ms(job, choice)
        passes = 2 * choice.pp * choice.virtual_stages * m
        print(
            f"{words:34}{choice.gpus:9,}{passes:10,}{cold:9.1f} ms{warm:9.1f} ms",
            flush=True,
        )


def columns_speed(layers: int, gpus: int) -> None:
    """Rows a second of the closed form over layouts of *gpus* devices."""
    random = np.random.default_rng(0)
    tp = 2 ** random.integers(0, 4, ROWS)
    pp = 2 ** random.integers(0, 6, ROWS)
    dp = gpus // (tp * pp)
    m = 2 ** random.integers(0, 7, ROWS)
    job = job_of(layers, int(np.max(dp * m)))
    ones, zeros = np.ones(ROWS, dtype=int), np.zeros(ROWS, dtype=int)
    columns = Columns(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=ones,
        micro_batch=2 ** random.integers(0, 3, ROWS),
        schedule=zeros,
        virtual_stages=ones,
        zero=random.integers(0, 2, ROWS),
        zero_group=ones,
        sequence_parallel=(tp > 1).astype(int),
        recompute=random.integers(0, 4, ROWS),
        cp_kind=zeros,
    )
    start = process_time()
    price(columns, job, ON)
    speed = ROWS / (process_time() - start)
    print(f"{layers:8,} layers{gpus:10,} GPUs{speed:12,.0f} rows/s")


def main() -> None:
    show(
        "data parallelism",
        (
            (f"dp {dp}", 96, 64, replace(BASE, dp=dp, zero_group=dp))
            for dp in (1, 8, 64, 512, 1568)
        ),
    )
    show(
        "pipeline ranks and micro-batches",
        (
            (f"pp {pp}, {m} micro-batches", 96, m, replace(BASE, pp=pp))
            for pp, m in ((4, 16), (8, 64), (16, 128), (32, 256), (32, 1024))
        ),
    )
    show(
        "layers",
        (
            (f"{layers:,} layers, pp {pp}", layers, 128, replace(BASE, pp=pp))
            for layers, pp in ((96, 16), (480, 16), (2000, 16), (2000, 125))
        ),
    )
    show(
        "all at once",
        [("2,000 layers on 100,000 GPUs", 2000, 250, replace(BASE, pp=125, dp=100))],
    )
    print("\nclosed form")
    for layers, gpus in ((96, 1024), (96, 131_072), (2000, 131_072)):
        columns_speed(layers, gpus)


if __name__ == "__main__":
    main()
