"""`plan --explain`: what a better machine or a larger batch would buy.

    memory, batch      planned anew: another layout may then be best
    links, compute     the recommendation priced again on the faster machine; a plan
                       made for that machine gains at least as much

Measured samples are of the machine as it is: with a profile, links and compute are left
out.

Sensitivities: a table, and members of the JSON document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from planner.problem import Candidate, Problem, Solution, Staged, short_candidate_words
from planner.search import again_priced
from profiles.errors import MeshwrightError
from profiles.hardware import Cluster, Device, Figure, Island
from profiles.units import GiB, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

FASTER: Final = 1.1
ANEW: Final = "replanned"
AGAIN: Final = "repriced"
Solve = Callable[[Problem], Solution]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One change of the question, and what is best, or what the best costs, then."""

    change: str
    how: str
    before: Candidate
    after: Candidate

    @property
    def throughput(self) -> float:
        """How many more tokens a second, as a fraction."""
        old, new = self.before.estimate, self.after.estimate
        return new.tokens_per_s_per_gpu / old.tokens_per_s_per_gpu - 1

    @property
    def other_layout(self) -> bool:
        return self.how == ANEW and not _alike(self.before, self.after)


def _alike(a: Candidate, b: Candidate) -> bool:
    """Whether two candidates are one layout; the number of micro-batches apart."""
    if isinstance(a, Staged) or isinstance(b, Staged):
        return a.estimate.layout.stages == b.estimate.layout.stages
    return a.choice == b.choice


def sensitivities(
    problem: Problem, solution: Solution, solve: Solve
) -> Iterator[Sensitivity]:
    """What each change would buy; *solve* plans anew."""
    best = solution.best
    if best is None:
        return
    for change, other in _other_problems(problem):
        found = _best(other, solve)
        if found is not None:
            yield Sensitivity(change=change, how=ANEW, before=best, after=found)
    for change, cluster in _faster(problem):
        on = problem.machine.of(cluster)
        after = again_priced(replace(problem, machine=on), best)
        yield Sensitivity(change=change, how=AGAIN, before=best, after=after)


def _best(problem: Problem, solve: Solve) -> Candidate | None:
    try:
        return solve(problem).best
    except MeshwrightError:  # too many branches, or no time
        return None


def _other_problems(problem: Problem) -> Iterator[tuple[str, Problem]]:
    capacity = problem.machine.device.capacity_bytes
    share = problem.memory_limit_bytes / capacity
    limit = problem.memory_limit_bytes + share * GiB
    yield "1 GiB more memory", replace(problem, memory_limit_bytes=limit)
    job = problem.job
    twice = replace(job, global_batch=2 * job.global_batch)
    yield "twice the global batch", replace(problem, job=twice)


def _faster(problem: Problem) -> Iterator[tuple[str, Cluster]]:
    """The cluster with one thing 10 % faster; nothing where samples are the price."""
    cluster = problem.machine.cluster
    if problem.machine.measured is not None or len(cluster.islands) > 1:
        return
    island = cluster.island
    for index, level in enumerate(island.levels):
        if not _speaks_over(problem, index):
            continue
        levels = list(island.levels)
        levels[index] = replace(level, bandwidth=_more(level.bandwidth))
        yield (
            f"10 % more {level.name} bandwidth ({level.kind})",
            _with(cluster, replace(island, levels=tuple(levels))),
        )
    for change, device in _faster_devices(island.device, problem.offload.anything):
        yield change, _with(cluster, replace(island, device=device))


def _faster_devices(device: Device, offloads: bool) -> Iterator[tuple[str, Device]]:
    peak = {name: _more(figure) for name, figure in device.peak.items()}
    yield "10 % more compute", replace(device, peak=peak)
    bandwidth = _more(device.memory_bandwidth)
    yield "10 % more memory bandwidth", replace(device, memory_bandwidth=bandwidth)
    if offloads:
        link = _more(device.host_link)
        yield "10 % more host link", replace(device, host_link=link)


def _speaks_over(problem: Problem, index: int) -> bool:
    """Whether a job of so many devices gets to a level at all."""
    inner = problem.machine.island.levels[index - 1].devices if index else 1
    return problem.gpus > (inner or 1)


def _more(figure: Figure) -> Figure:
    return replace(figure, value=figure.value * FASTER)


def _with(cluster: Cluster, island: Island) -> Cluster:
    return replace(cluster, islands=(island,))


def sensitivity_document(found: Sensitivity) -> dict[str, Any]:
    """One entry of `sensitivities`; `layout` is null where it stays the same."""
    estimate = found.after.estimate
    return {
        "change": found.change,
        "how": found.how,
        "throughput": found.throughput,
        "step_time_s": estimate.step_time_s,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "layout": estimate.layout.to_dict() if found.other_layout else None,
    }


def sensitivities_table(rows: Sequence[Sensitivity]) -> Table:
    """One line a change: what it buys, and with which layout."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="bold", show_edge=False)
    table.add_column("what if", overflow="fold")
    for name in ("tokens/s", "step", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how")
    table.add_column("layout", overflow="fold")
    for row in rows:
        estimate = row.after.estimate
        table.add_row(
            row.change,
            f"{row.throughput:+.1%}",
            format_seconds(estimate.step_time_s),
            format_bytes(estimate.peak_memory_bytes),
            row.how,
            short_candidate_words(row.after, estimate.job.global_batch)
            if row.other_layout
            else "the same",
        )
    return table
