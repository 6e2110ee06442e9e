"""Layouts trained one after another on this GPU: steps, peaks and kernels by kind.

    python -m benchmarks.layout_kernels LAYOUT.json … --keep FILE.json [--steps 8]

One process, so a layout is of one rank; `simulate --gpus 1 --out` writes such files.
Kernels are those of one more step under torch.profiler: seconds and launches of each,
and how long the GPU was busy. What a layout raises is kept in its place.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from costmodel.layout.layout import Layout
from costmodel.simulation.layout_files import job_of
from costmodel.simulation.serialization import parse_file
from profiles.files import read_json, write_text
from profiles.models.job import Job
from profiles.units import GB, US
from runtime.data.sources import source
from runtime.launch.processes import process_group
from runtime.models.decoder import decoder_of
from runtime.observe.run_summary import WARM_UP_STEPS, StepProfiler
from runtime.optim.optimizer import Settings
from runtime.train.build import Setup
from runtime.train.trainer import Trainer

SEED: Final = 0
MOST_SHOWN: Final = 30  # kernels of a layout, the longest first
# Parts of kernels' names, the first that is found counts.
KINDS: Final = {
    "attention": ("flash", "fmha", "sdpa"),
    "product": ("gemm", "cutlass", "nvjet", "xmma"),
    "copy": ("memcpy", "memset"),
    "optimizer": ("multi_tensor",),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layouts", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--keep", type=Path, required=True)
    wish = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU on this machine")
    found: dict[str, Any] = {}
    with process_group("cuda", timeout_s=600) as worker:
        for path in wish.layouts:
            try:
                file = parse_file(read_json(path, what="layout file"))
                job = job_of(file)
                seen = trained(job, file.layout, worker.device, wish.steps)
            except (RuntimeError, ValueError) as error:
                seen = {"error": f"{type(error).__name__}: {error}"}
            found[path.stem] = seen
            print(line(path.stem, seen), flush=True)
            about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
            write_text(wish.keep, json.dumps({**about, "runs": found}, indent=1))
            gc.collect()
            torch.cuda.empty_cache()
    return 0


def trained(
    job: Job, layout: Layout, device: torch.device, steps: int
) -> dict[str, Any]:
    """Seconds of so many *steps*, losses, the second step's peak, a step's kernels."""
    before = torch.cuda.memory_allocated(device)
    vocab = decoder_of(job).vocab
    trainer = Trainer(
        job,
        layout,
        source("synthetic", vocab=vocab, seq_len=job.seq_len, seed=SEED),
        settings=Settings(name=job.optimizer),
        setup=Setup(seed=SEED, device=device),
    )
    watch = StepProfiler(trainer, record=False, untimed=WARM_UP_STEPS, trace=None)
    count = WARM_UP_STEPS + steps
    results = [watch.step(number, since=number) for number in range(count)]
    plain_s = [_plain_s(trainer, count + number) for number in range(steps)]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA]
    ) as profiler:
        _plain_s(trainer, count + steps)
    return {
        "steps_s": [one.seconds for one in results[WARM_UP_STEPS:]],
        "plain_s": plain_s,
        "losses": [one.loss for one in results],
        "before": before,
        "allocated": watch.peak.allocated,
        "reserved": watch.peak.reserved,
        "kernels": by_kernel(profiler.events() or ()),
    }


def _plain_s(trainer: Trainer, number: int) -> float:
    """Seconds of a step that nothing watches."""
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    trainer.step(number)
    torch.cuda.synchronize()
    return time.perf_counter() - began_s


def by_kernel(events: Iterable[Any]) -> dict[str, Any]:
    """Seconds by kind, launches, busy seconds; of the longest, seconds and launches."""
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(list)
    spans = []
    for one in events:
        if not str(one.device_type).endswith("CUDA") or not one.device_time_total:
            continue
        seconds = one.device_time_total * US
        kinds[kind_of(one.name)] += seconds
        names[one.name].append(seconds)
        spans.append((one.time_range.start, one.time_range.end))
    longest = sorted(names.items(), key=lambda item: -sum(item[1]))[:MOST_SHOWN]
    return {
        "by_kind_s": dict(kinds),
        "kernels": len(spans),
        "busy_s": covered(spans) * US,
        "top": {name: [sum(each), len(each)] for name, each in longest},
    }


def kind_of(name: str) -> str:
    """The kind of the kernel *name*.

    >>> kind_of("nvjet_sm90_tst_256x128"), kind_of("cunn_SoftMaxForward")
    ('product', 'other')
    """
    low = name.lower()
    fitting = (kind for kind, parts in KINDS.items() if any(p in low for p in parts))
    return next(fitting, "other")


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """How much of the time any of *spans* covers.

    >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def line(name: str, seen: dict[str, Any]) -> str:
    if "error" in seen:
        return f"{name:20} {seen['error']}"
    kernels = seen["kernels"]
    own = (seen["allocated"] - seen["before"]) / GB
    return (
        f"{name:20} {median(seen['steps_s']):8.4f} s, busy {kernels['busy_s']:.4f} in "
        f"{kernels['kernels']} kernels, {own:.2f} GB"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
