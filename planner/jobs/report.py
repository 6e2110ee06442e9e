"""What `plan --jobs` shows: a table, a document, and a page with the schedule drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from costmodel.pages import Section, facts, rows, whole_page
from costmodel.report import gantt
from planner.jobs.policies import Bar, Policy
from planner.jobs.times import Job
from profiles.units import format_seconds

if TYPE_CHECKING:
    from rich.table import Table

MOST_BARS: Final = 20_000  # drawn, the longest of more
WORDS: Final = {
    "shared": "each job on GPUs of its own",
    "in turn": "one job after another",
    "sharded": "every model spilled on one GPU, shards in turn (Hydra)",
}


def document(
    jobs: Sequence[Job], found: Sequence[Policy], where: str, gpus: int
) -> dict[str, Any]:
    best = found[0]
    return {
        "cluster": where,
        "gpus": gpus,
        "jobs": [_job(job) for job in jobs],
        "schedule": {
            **_policy(best),
            "jobs": [
                {
                    "name": one.name,
                    "gpus": one.last - one.first + 1,
                    "ranks": _ranks(one),
                    "start_s": one.start_s,
                    "end_s": one.end_s,
                }
                for one in best.bars
            ],
        },
        "alternatives": [_policy(one) for one in found[1:]],
        "infeasible": None,
    }


def _ranks(bar: Bar) -> str:
    return f"{bar.first}" + f"-{bar.last}" * (bar.last > bar.first)


def _job(job: Job) -> dict[str, Any]:
    plans = job.plans
    return {
        "name": job.name,
        "model": job.model.name,
        "steps": job.steps,
        "global_batch": job.batch,
        "seconds": {str(n): job.seconds(one) for n, one in plans.items()},
        "spilled_seconds": job.seconds(job.spilled) if job.spilled else None,
        "layouts": {str(n): one.estimate.layout.summary for n, one in plans.items()},
    }


def _policy(one: Policy) -> dict[str, Any]:
    return {
        "policy": one.name,
        "makespan_s": one.makespan_s,
        "lower_bound_s": one.lower_s,
        "gap": one.gap,
        "ends_s": dict(one.ends_s),
        "late": list(one.late),
    }


def lines(found: Sequence[Policy], gpus: int) -> Iterator[tuple[str, str]]:
    """The best way to share, its proof, and the others."""
    best, *others = found
    late = f"; late: {', '.join(best.late)}" if best.late else ""
    done = f"all {len(best.ends_s)} jobs done in {format_seconds(best.makespan_s)}"
    way = f"{best.name} ({WORDS[best.name]})"
    yield "sharing", f"{way}: {done} on {gpus:,} GPUs{late}"
    proof = f"no such schedule is shorter by more than {best.gap:.1%} (the gap)"
    yield "optimality", proof
    for one in others:
        longer = one.makespan_s / best.makespan_s - 1
        late = f", {len(one.late)} late" if one.late else ""
        yield (
            f"not {one.name}",
            f"{format_seconds(one.makespan_s)} ({longer:+.1%}){late}",
        )


def table(jobs: Sequence[Job], best: Policy) -> Table:
    """One line a job: its GPUs, when, and a bar."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 1), header_style="bold")
    made.add_column("job", overflow="fold")
    for name in ("GPUs", "ranks", "start", "end"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for cells in table_rows(jobs, best):
        made.add_row(*cells)
    return made


def table_rows(jobs: Sequence[Job], best: Policy) -> Iterator[list[str]]:
    own = {job.name: [bar for bar in best.bars if bar.name == job.name] for job in jobs}
    for name, bars in sorted(own.items(), key=lambda pair: pair[1][0].start_s):
        first = min(bars, key=lambda one: one.start_s)
        many = len(bars) > 1
        yield [
            name,
            f"{first.last - first.first + 1:,}",
            "in turn" if many else _ranks(first),
            format_seconds(first.start_s) if first.start_s else "0",
            format_seconds(best.ends_s[name]),
            _drawn(bars, best.makespan_s),
        ]


def _drawn(bars: Sequence[Bar], whole_s: float, width: int = 28) -> str:
    """When a job runs, in characters."""
    cells = [" "] * width
    for bar in bars:
        start = int(bar.start_s / whole_s * width)
        end = max(start + 1, round(bar.end_s / whole_s * width))
        cells[start:end] = "█" * (min(end, width) - start)
    return "".join(cells[:width])


def page(jobs: Sequence[Job], found: Sequence[Policy], where: str, gpus: int) -> str:
    """A page with the schedule drawn; raises Unsupported where Bokeh is missing."""
    best = found[0]
    said = dict(lines(found, gpus))
    longest = sorted(best.bars, key=lambda one: one.start_s - one.end_s)[:MOST_BARS]
    picture = gantt(
        [(one.name, one.first, one.last, one.start_s, one.end_s) for one in longest],
        gpus,
    )
    heads = ["job", "model", "steps", "GPUs", "ranks", "start", "end"]
    known = {job.name: job for job in jobs}
    body = [
        [
            cells[0],
            known[cells[0]].model.name,
            f"{known[cells[0]].steps:,.0f}",
            *cells[1:-1],
        ]
        for cells in table_rows(jobs, best)
    ]
    sections = [
        Section(name="schedule", title="Schedule", html=picture),
        Section(name="jobs", title="Jobs", html=rows(heads, body)),
        Section(name="others", title="Other ways to share", html=facts(said.items())),
    ]
    title = f"{len(jobs)} jobs on {gpus:,} GPUs of {where}"
    return whole_page(title, said["sharing"], sections, {})
