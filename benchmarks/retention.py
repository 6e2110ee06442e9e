"""What retention by stage buys: the fastest step in a budget, presets against auto.

    python benchmarks/retention.py

For each question a layout with everything else fixed; budgets run from what full
recompute needs to what keeping everything needs. A preset counts in all layers or in
the first K of each stage, whichever is faster and fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costmodel.layout.retention import AUTO
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.remat_auto import fitted
from planner.search.offload import with_ratio
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.units import GiB

PRESETS = ("selective", "cheap-ops", "full")
SHARES = (0.75, 0.5, 0.25, 0.1, 0.0)  # of the way from full recompute to none
_PIPE = Uniform(tp=2, pp=4, dp=8, zero_group=8, sequence_parallel=True, micro_batch=4)
QUESTIONS = {
    "gpt-13b": _PIPE,
    "llama3-70b": replace(_PIPE, tp=8, dp=2, zero_group=2, micro_batch=2),
    "mixtral-8x7b": replace(_PIPE, tp=1, ep=8, dp=16, zero_group=16, micro_batch=1),
}


def layouts(choice: Uniform, layers: int) -> Iterator[Uniform]:
    """Every preset in all layers of a stage, and in the first K."""
    for name in PRESETS:
        for first in range(1, layers + 1):
            yield replace(choice, recompute=name, recompute_layers=first)


def priced(choice: Uniform, job: Job, on: Machine) -> Estimate:
    layout = spell_out(choice, job.graph, job.global_batch)
    return estimate(job, on.cluster, layout, on=on)


def main() -> None:
    print(
        f"model{'GiB':>12}{'none':>8}  preset{'auto':>20}{'faster':>9}  offload    both"
    )
    for name, choice in QUESTIONS.items():
        found = model(name)
        job = Job(model=name, spec=found.spec, seq_len=found.seq_len, global_batch=256)
        _table(name, choice, job, machine(cluster("dgx-a100-80gb")))


def _table(name: str, choice: Uniform, job: Job, on: Machine) -> None:
    kept = priced(choice, job, on)
    layers = -(-job.graph.body // choice.pp)
    tried = [(one, priced(one, job, on)) for one in layouts(choice, layers)]
    least = min(one.peak_needed_bytes for _, one in tried)
    for share in SHARES:
        limit = least + share * (kept.peak_needed_bytes - least)
        fits = [(e.step_time_s, c) for c, e in tried if e.peak_needed_bytes <= limit]
        seconds, best = min(fits, key=lambda one: one[0])
        auto = fitted(replace(choice, recompute=AUTO), job, on, limit, executable=False)
        ratio = with_ratio(choice, job, on, limit)
        away = None if ratio is None else priced(ratio, job, on)
        both = fitted(
            replace(choice, recompute=AUTO),
            job,
            on,
            limit,
            executable=False,
            leaves_to="cpu",
        )
        how = f"{best.recompute} in {best.recompute_layers}"
        print(
            f"{name:12}{limit / GiB:6.1f}{kept.step_time_s:8.2f}{seconds:8.2f} {how:15}"
            f"{auto.step_time_s:6.2f}{1 - auto.step_time_s / seconds:8.1%}"
            + ("     none" if away is None else f"{away.step_time_s:9.2f}")
            + f"{both.step_time_s:8.2f}"
        )


if __name__ == "__main__":
    main()
