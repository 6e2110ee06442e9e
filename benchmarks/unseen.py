"""How well a profile of this machine tells what it has not measured.

    python -m benchmarks.unseen [--device cpu|cuda] [--shapes 200] [--keep FOLDER]
        [--page docs/profile.md]

One profile of one rank, as `profile` takes it. Then random operators of shapes between
those of the profile, timed the same way and held against what is read off its samples;
and whole transformer layers, forward and backward, against the sum of their operators.
FOLDER gets the profile and every pair of figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.pages import put
from benchmarks.random_operations import unseen
from benchmarks.whole_layers import LayerTime, layer_times
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.measured import Measured
from profiles.files import write_text
from profiles.measure.machine import CALIBRATION
from profiles.measure.processes import run
from profiles.measure.session import (
    MOST_FLOPS,
    MeasureOptions,
    Question,
    described,
    measure,
    rank_memory_bytes,
    request_of,
    resolved,
)
from profiles.measure.timing.tasks import Operation, Request
from profiles.samples.files import write_samples
from profiles.units import MS

SIZES = (1, 2, 4)  # micro-batches of whole layers
PROFILE_S = {"cpu": 120.0, "cuda": 120.0}
OTHERS_S = {"cpu": 120.0, "cuda": 60.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds of one pass of an unseen operator, measured and read off the profile."""

    operation: Operation
    measured_s: float
    priced_s: float

    @property
    def error(self) -> float:
        return self.priced_s / self.measured_s - 1.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--profile-seconds", type=float)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--page", type=Path)
    wish = parser.parse_args(arguments)
    question = resolved(MeasureOptions(device=wish.device, ranks=1))
    found = measure(
        question, say, budget_s=wish.profile_seconds or PROFILE_S[question.device]
    )
    where = found.samples.cluster
    assert where is not None, "a profile says what it was taken on"
    on = machine(where, samples=found.samples)
    with tempfile.TemporaryDirectory() as folder:
        request = request_of(question, f"{folder}/meeting", OTHERS_S[question.device])
        pairs, speed = pairs_of(question, request, on, wish.shapes)
    torch.set_num_threads(request.threads)
    layers = [
        one
        for job in question.jobs
        for number in question.precisions
        for one in layer_times(job, on, number, question.device, SIZES)
    ]
    lines = chain(
        (
            f"{where.device.name}, the machine was {found.noise}",
            f"after it a fixed product took {speed:.2f} of its time in the profile",
            "",
        ),
        operators_table(pairs),
        [""],
        layers_table(layers),
    )
    shown = "\n".join(lines)
    print(shown)
    command = " ".join(["python -m benchmarks.unseen", *arguments])
    if wish.page:
        put(wish.page, "unseen", f"`{command}`\n\n```text\n{shown}\n```\n")
    if wish.keep:
        wish.keep.mkdir(parents=True, exist_ok=True)
        write_samples(found.samples, wish.keep / "samples.json")
        document = {
            "command": command,
            "machine": dict(found.samples.machine),
            "operators": [asdict(one) for one in pairs],
            "layers": [asdict(one) for one in layers],
        }
        write_text(wish.keep / "unseen.json", json.dumps(document, indent=1))
    return 0


def pairs_of(
    question: Question, request: Request, on: Machine, count: int
) -> tuple[list[Pair], float]:
    """*count* random operators of each precision, timed, beside their price; and how
    long a fixed product took then, over the profile's."""
    seen = request.operations
    drawn = [
        one
        for number in question.precisions
        for operations in unseen(
            [one for one in seen if one.precision == number],
            count,
            most_bytes=rank_memory_bytes((described(question),), question.device),
            most_flops=MOST_FLOPS[question.device],
        )
        for one in operations
    ]
    asked = replace(request, operations=tuple(drawn), exchanges=())
    (result,) = run(asked, say)
    assert on.measured is not None
    pairs = [
        Pair(operation=one, measured_s=median(timing.seconds), priced_s=priced_s)
        for one, timing in zip(drawn, result.operations, strict=True)
        if (priced_s := read_off(on.measured, one)) is not None
    ]
    now_s = median(own_s for own_s, _ in result.calibrations)
    return pairs, now_s / float(on.measured.samples.machine[CALIBRATION])


def read_off(samples: Measured, one: Operation) -> float | None:
    """Seconds that *samples* tell of an operator; None where they tell nothing."""
    dims = [np.asarray(size) for size in one.shape]
    found = samples.operator(one.kind, one.direction, dims, one.precision)
    if found is None or not np.isfinite(found.seconds):
        return None
    return float(found.seconds)


def operators_table(pairs: Iterable[Pair]) -> Iterator[str]:
    by: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in pairs:
        operation = one.operation
        for kind in (operation.kind, "all"):
            by[operation.precision, kind].append(one.error)
    yield f"{'operators unseen':24}{'passes':>7}{'median':>8}{'p95':>8}{'bias':>8}"
    for (number, kind), errors in sorted(by.items()):
        sizes = np.abs(errors)
        yield (
            f"{number + ' ' + kind:24}{len(errors):7}{np.median(sizes):8.1%}"
            f"{np.quantile(sizes, 0.95):8.1%}{np.median(errors):+8.1%}"
        )


def layers_table(layers: Iterable[LayerTime]) -> Iterator[str]:
    yield f"{'whole layers':24}{'batch':>6}{'measured':>11}{'priced':>11}{'error':>8}"
    for one in layers:
        yield (
            f"{one.model + ' ' + one.direction:24}{one.micro_batch:6}"
            f"{one.measured_s / MS:8.2f} ms{one.priced_s / MS:8.2f} ms{one.error:+8.1%}"
        )


def say(seconds: float, of: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{seconds:4.0f} of {of:.0f} s", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
