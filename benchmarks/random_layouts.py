"""Price random legal layouts and hold them against the recommendation.

    python benchmarks/random_layouts.py [--model gpt-13b] [--gpus 64] [--count 400]

None that fits may beat the recommended one by more than the certificate's gap; exit 1
if one does.
"""

from __future__ import annotations

import argparse
import random
import sys

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import estimate
from costmodel.support.legality import violations
from planner import plan
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job


def some_divisor(number: int, chance: random.Random) -> int:
    return chance.choice([one for one in range(1, number + 1) if number % one == 0])


def some_layout(gpus: int, chance: random.Random) -> Uniform:
    """A random choice of everything; most are not legal."""
    tp = some_divisor(gpus, chance)
    pp = some_divisor(gpus // tp, chance)
    cp = some_divisor(gpus // tp // pp, chance)
    dp = gpus // tp // pp // cp
    virtual = chance.choice((1, 1, 2, 4, 5))
    zero = chance.randrange(4)
    return Uniform(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        micro_batch=chance.choice((1, 2, 3, 4, 8)),
        schedule="interleaved" if virtual > 1 else chance.choice(("1f1b", "gpipe")),
        virtual_stages=virtual,
        zero=zero,
        zero_group=some_divisor(dp, chance) if zero else 1,
        sequence_parallel=tp > 1 and chance.random() < 0.7,
        recompute=chance.choice(("none", "selective", "cheap-ops", "full")),
        cp_kind=chance.choice(("ring", "all-gather", "ulysses")),
    )


def main() -> int:
    """Print the best of the random ones, and the recommendation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt-13b")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--count", type=int, default=400)
    asked = parser.parse_args()
    found, where = model(asked.model), cluster("dgx-a100-80gb")
    job = Job(
        model=found.name,
        spec=found.spec,
        seq_len=found.seq_len,
        global_batch=found.global_batch,
    )
    chance, on, fitting = random.Random(0), machine(where), list[float]()
    priced = 0
    while priced < asked.count:
        choice = some_layout(asked.gpus, chance)
        if list(violations(choice, job, where)):
            continue
        layout = spell_out(choice, job.graph, job.global_batch)
        priced += 1
        one = estimate(job, where, layout, on=on)
        if one.fits:
            fitting.append(one.step_time_s)
    best = plan(job, where, gpus=asked.gpus)
    assert best.best is not None
    step_s = best.best.estimate.step_time_s
    print(f"{priced} random legal layouts, {len(fitting)} fit")
    print(f"fastest of them   {min(fitting):.3f} s")
    print(f"recommended       {step_s:.3f} s, gap {best.gap:.2%}")
    return int(min(fitting) < step_s * (1 - best.gap) * (1 - 1e-9))


if __name__ == "__main__":
    sys.exit(main())
