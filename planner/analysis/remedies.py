"""Changes of a question that may give it a layout, the smallest first of each kind.

    a pin less       each pin alone                               → unpinned
    offloading       optimizer, activations, both, parameters too,
                     to the hosts and then to drives              → offloaded
    a smaller batch  where in-flight micro-batches are the matter → smaller_batches
    a shorter one    the sequence halved, and halved again        → shorter_sequences
    more GPUs        twice to 1,024 times                          → more_gpus
    what divides     another batch, the nearest numbers of GPUs   → dividing

A change of the machine or the job that leaves the states alone too large is left out:
no layout could fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from costmodel.layout import TIERS, Offload
from costmodel.stages import capacity_bytes
from planner.problem import (
    Problem,
    Space,
    divisors,
    dp_to_split,
    layout_pins,
    length,
    require_consistent,
    states_fit,
)
from profiles.errors import InvalidQuestion

MULTIPLES: Final = (
    *(2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
    *(192, 256, 384, 512, 768, 1024),
)
MOST_GPUS: Final = 131_072  # more than any cluster joins
SHORTEST: Final = 256  # tokens of a sequence that is tried
FARTHEST_COUNT: Final = 256  # how many fewer or more GPUs are tried
OFFLOADS: Final = (
    Offload(optimizer=True),
    Offload(activations=1.0),
    Offload(optimizer=True, activations=1.0),
    Offload(optimizer=True, parameters=True),
    Offload(optimizer=True, parameters=True, activations=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Another question, and the words for what differs; `option` as on a command
    line, empty where one is to be left out."""

    what: str
    option: str
    problem: Problem

    def __str__(self) -> str:
        return f"{self.what} ({self.option})" if self.option else self.what


def without_layers(problem: Problem) -> Change:
    """Without the layers of stages that are given."""
    names = ("stage_layers", "first_stage_layers", "last_stage_layers")
    given = [name for name in names if getattr(problem.pins, name) is not None]
    left_out = dict.fromkeys(given)
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
    return Change(
        what=f"leave {flags} out",
        option="",
        problem=problem.repinned(replace(problem.pins, **left_out)),
    )


def unpinned(problem: Problem) -> Iterator[Change]:
    """Without one of the pins."""
    for name in layout_pins(problem.pins):
        yield Change(
            what=f"leave --{name.replace('_', '-')} out",
            option="",
            problem=replace(problem, pins=replace(problem.pins, **{name: None})),
        )


def offloaded(problem: Problem) -> Iterator[Change]:
    """With more on the hosts than now, or on their drives where the cluster says how
    much they hold; as far as the pins and `execute` allow."""
    now = problem.offload
    seen = {now}
    for tier in _tiers(problem):
        for more in (now, *OFFLOADS):
            away = Offload(
                activations=max(now.activations, more.activations),
                optimizer=now.optimizer or more.optimizer,
                parameters=now.parameters or more.parameters,
                tier=tier,
            )
            change = _offloading(replace(problem, offload=away))
            if away.anything and away not in seen and _possible(change.problem):
                seen.add(away)
                yield change


def _tiers(problem: Problem) -> tuple[str, ...]:
    """Where offloading goes to now, and from the hosts' memory to drives."""
    now, drives = problem.offload.tier, TIERS[-1]
    if now == drives or capacity_bytes(problem.machine.cluster, drives) is None:
        return (now,)
    return (now, drives)


def _offloading(problem: Problem) -> Change:
    away = problem.offload
    farther = f" --offload-to {away.tier}" if away.tier != TIERS[0] else ""
    return Change(
        what=f"offloading to {'drives' if farther else 'the host'}",
        option=f"--offload {away}{farther}",
        problem=problem,
    )


def smaller_batches(problem: Problem) -> Iterator[Change]:
    """Divisors of the batch, the smallest first; where the states alone fit."""
    if not states_fit(problem):
        return
    batch = problem.job.global_batch
    for smaller in divisors(batch)[:-1]:
        job = replace(problem.job, global_batch=smaller)
        yield _batch(smaller, replace(problem, job=job))


def shorter_sequences(problem: Problem) -> Iterator[Change]:
    """The sequence halved as often as it can be, the shortest first; where the states
    alone fit."""
    if not states_fit(problem):
        return
    whole, several = problem.job.seq_len, []
    while whole % 2 == 0 and (whole := whole // 2) >= SHORTEST:
        several.append(whole)
    for seq_len in reversed(several):
        job = replace(problem.job, seq_len=seq_len)
        yield Change(
            what=f"sequences of {seq_len}",
            option=f"--seq-len {seq_len}",
            problem=replace(problem, job=job),
        )


def more_gpus(problem: Problem) -> Iterator[Change]:
    """Multiples of the GPUs, as far as the cluster goes."""
    most = problem.machine.cluster.gpus or MOST_GPUS
    for multiple in MULTIPLES:
        gpus = problem.gpus * multiple
        larger = replace(problem, gpus=gpus)
        if gpus <= most and states_fit(larger):
            yield _gpus(gpus, larger)


def dividing(problem: Problem) -> Iterator[Change]:
    """What splits where nothing does: a raised batch, then numbers of GPUs, the
    nearest first."""
    batch = -(-problem.job.global_batch // problem.gpus) * problem.gpus
    raised = replace(problem, job=replace(problem.job, global_batch=batch))
    if length(Space(problem=raised).trunks):
        yield _batch(batch, raised)
    most = problem.machine.cluster.gpus or MOST_GPUS
    for apart in range(1, FARTHEST_COUNT):
        for gpus in (problem.gpus - apart, problem.gpus + apart):
            other = replace(problem, gpus=gpus) if 1 <= gpus <= most else None
            if other is not None and length(Space(problem=other).degrees):
                yield _gpus(gpus, other)


def _gpus(count: int, problem: Problem) -> Change:
    """The batch is said where one that nobody gave would be raised for so many."""
    pins, batch = problem.pins, problem.job.global_batch
    pieces = (pins.micro_batch or 1) * (pins.micro_batches or 1)
    stays = batch % (dp_to_split(problem) * pieces) == 0
    option = f"--gpus {count}" if stays else f"--gpus {count} --global-batch {batch}"
    return Change(what=f"{count} GPUs", option=option, problem=problem)


def _batch(size: int, problem: Problem) -> Change:
    option = f"--global-batch {size}"
    return Change(what=f"a batch of {size}", option=option, problem=problem)


def _possible(problem: Problem) -> bool:
    """Whether some layout of *problem* may offload so, and then fit."""
    try:
        require_consistent(problem)
    except InvalidQuestion:
        return False
    return states_fit(problem)
