"""Profile this machine, plan for it, carry many layouts out, compare.

    python -m benchmarks.closed_loop            two models on 2 and on 4 ranks
    python -m benchmarks.closed_loop --model gpt-mini --ranks 2 --layouts 6 --rounds 3

The machine is profiled once for each number of ranks. Every prediction is made before
its run, from the profile and the catalogue alone; nothing is tuned to the runs.

    --page docs/loop.md    put their summaries between the page's markers
    --keep FOLDER          write what was seen there: JSON, tables, a drawing
    --samples FOLDER       profiles of before, as --keep left them, instead of new ones
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.loop_layouts import RANKS, named_layouts
from benchmarks.loop_report import Table, drawing, row_of, words
from benchmarks.loop_worker import Request
from benchmarks.pages import measuring, put
from costmodel.layout.layout import Layout
from costmodel.machine.assembly import Machine, machine
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.layout_files import write_layout
from planner.api import plan
from profiles.files import read_json
from profiles.measure.machine import CALIBRATION
from profiles.measure.options import MeasureOptions
from profiles.measure.session import Question, measure, resolved
from profiles.models.catalog import model
from profiles.models.job import Job, Model
from profiles.samples.files import read_samples, write_samples
from profiles.samples.table import LOCAL, Samples, local_cluster
from runtime.launch.launcher import Program, launch
from runtime.launch.run import threads
from runtime.observe.prediction import missed

MODELS = Path(__file__).parent / "models"
PLANNED = "the plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One model on so many ranks of the machine: each layout with its price."""

    job: Job
    on: Machine
    planned: str
    priced: Mapping[str, Estimate]

    @property
    def ranks(self) -> int:
        return next(iter(self.priced.values())).layout.gpus


def main() -> None:
    wish = _wish()
    models = [_scaled(model(name), wish) for name in wish.model]
    tables: list[Table] = []
    seen: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="meshwright-") as scratch:
        folder = (wish.keep or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for ranks in wish.ranks:
            samples = _profiled(models, ranks, wish, folder)
            for known in models:
                loop = _posed(known, samples, ranks, wish.layouts)
                calm_s = float(samples.machine[CALIBRATION])
                found = _carried_out(loop, wish, calm_s, folder)
                tables.append(_table(loop, found))
                seen.append(_document(loop, tables[-1], found, samples))
                print(f"{tables[-1].markdown()}\n\n{_speed(seen[-1])}\n", flush=True)
                _write(tables, seen, wish)


def _wish() -> argparse.Namespace:
    parser = measuring(__doc__)
    both = [str(MODELS / "gpt.json"), str(MODELS / "llama.json")]
    parser.add_argument("--model", nargs="+", default=both, help="names or files")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4], choices=RANKS)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--global-batch", type=int)
    parser.add_argument("--layouts", type=int, help="the first so many  [default: all]")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3, help="timed in a round")
    parser.add_argument("--profile-seconds", type=float, default=150.0)
    parser.add_argument(
        "--patience",
        type=float,
        default=300.0,
        help="seconds a table for waiting until the machine is as fast as profiled",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--samples", type=Path)
    return parser.parse_args()


def _scaled(known: Model, wish: argparse.Namespace) -> Model:
    return replace(
        known,
        seq_len=wish.seq_len or known.seq_len,
        global_batch=wish.global_batch or known.global_batch,
    )


def _profiled(
    models: list[Model], ranks: int, wish: argparse.Namespace, folder: Path
) -> Samples:
    """The machine as so many ranks see it, at the shapes of all *models*."""
    name = f"samples-{ranks}.json"
    if wish.samples is not None:
        return read_samples(wish.samples / name)
    basis = resolved(MeasureOptions(device=wish.device, ranks=ranks))
    question = Question(
        device=basis.device,
        ranks=ranks,
        precisions=basis.precisions,
        jobs=tuple(
            Job(
                model=known.name,
                spec=known.spec,
                seq_len=known.seq_len,
                global_batch=known.global_batch,
            )
            for known in models
        ),
        quick=True,
    )
    _say(f"profiling {ranks} ranks")
    found = measure(question, lambda _, __: None, budget_s=wish.profile_seconds)
    _say(f"the machine was {found.noise}")
    write_samples(found.samples, folder / name)
    return found.samples


def _posed(known: Model, samples: Samples, ranks: int, most: int | None) -> Loop:
    """The plan and the named layouts that fit, each priced before any is run."""
    where = local_cluster(samples)
    on = machine(where, samples=samples).running(ranks)
    named = {
        name: (job, layout) for name, job, layout in named_layouts(known, on, ranks)
    }
    job = next(iter(named.values()))[0]
    priced = {
        name: estimate(one, where, layout, on=on)
        for name, (one, layout) in named.items()
    }
    fitting = {name: one for name, one in priced.items() if one.fits}
    best = plan(job, where, gpus=ranks, on=on).best
    if best is None:
        raise SystemExit(f"no layout of {known.name} fits on this machine")
    chosen = dict(list(fitting.items())[:most])
    same = (name for name, one in chosen.items() if _alike(one, best.estimate))
    planned = next(same, PLANNED)
    if planned == PLANNED:
        chosen[PLANNED] = best.estimate
    return Loop(job=job, on=on, planned=planned, priced=chosen)


def _alike(one: Estimate, other: Estimate) -> bool:
    return one.layout == other.layout


def _carried_out(
    loop: Loop, wish: argparse.Namespace, calm_s: float, folder: Path
) -> dict[str, Any]:
    """What the ranks saw of every layout."""
    layouts = {
        name: _layout_document(loop.job, one.layout, folder)
        for name, one in loop.priced.items()
    }
    result, asked = folder / "result.json", folder / "request.json"
    Request(
        layouts=layouts,
        device=wish.device,
        threads=threads(loop.ranks),
        rounds=wish.rounds,
        steps=wish.steps,
        calm_s=calm_s,
        patience_s=wish.patience,
        result=str(result),
    ).write(asked)
    _say(f"{loop.job.model}: {len(layouts)} layouts on {loop.ranks} ranks")
    began = time.perf_counter()
    launch(
        Program(arguments=[str(asked)], module="benchmarks.loop_worker"),
        nproc=loop.ranks,
        device=wish.device,
    )
    _say(f"took {time.perf_counter() - began:.0f} s")
    found = read_json(result, what="the loop's result")
    asked.unlink()
    result.unlink()
    assert isinstance(found, dict)
    return found


def _layout_document(job: Job, layout: Layout, folder: Path) -> dict[str, Any]:
    file = folder / "layout.json"
    write_layout(file, job, LOCAL, layout)
    document = read_json(file, what="layout file")
    file.unlink()
    assert isinstance(document, dict)
    return document


def _table(loop: Loop, found: Mapping[str, Any]) -> Table:
    return Table(
        model=loop.job.model,
        ranks=loop.ranks,
        planned=loop.planned,
        rows=tuple(
            row_of(name, found["runs"][name], _predicted(one))
            for name, one in loop.priced.items()
        ),
    )


def _predicted(one: Estimate) -> dict[str, Any]:
    """Seconds of a step, and the peak of each rank: those of a pipeline rank alike."""
    alike = one.layout.gpus // one.layout.pp
    peaks = [float(held.allocated) for held in one.memory for _ in range(alike)]
    return {"step_time_s": one.step_time_s, "peak_allocated_bytes": peaks}


def _document(
    loop: Loop, table: Table, found: Mapping[str, Any], samples: Samples
) -> dict[str, Any]:
    """All that was asked, predicted and seen, as JSON values."""
    return {
        "model": loop.job.model,
        "ranks": loop.ranks,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "command": f"python -m benchmarks.closed_loop {shlex.join(sys.argv[1:])}",
        "machine": dict(samples.machine),
        "calibrations_s": found["calibrations_s"],
        "summary": table.summary(),
        "layouts": {
            name: {
                "layout": one.layout.summary,
                "predicted": {
                    **_predicted(one),
                    "breakdown_s": {k: float(v) for k, v in one.breakdown_s.items()},
                },
                "seen": found["runs"][name],
                "missed": [
                    asdict(row) for row in missed(one, loop.on, found["runs"][name])
                ],
            }
            for name, one in loop.priced.items()
        },
    }


def _speed(seen: Mapping[str, Any]) -> str:
    """How fast the machine was while it trained, against while it was profiled."""
    about = seen["machine"]
    said = f"The profile's machine was {about['noise']}."
    before = float(about[CALIBRATION])
    rounds = " ".join(f"{one / before:.2f}" for one in seen["calibrations_s"])
    again = sum(len(one["seen"]["disturbed_s"]) for one in seen["layouts"].values())
    return (
        f"{said} A fixed product took, round by round, {rounds} of its time then. "
        f"{again} visits were made again since it took 15 % more, or less, after them."
    )


def _text(tables: list[Table], seen: list[dict[str, Any]], *, rows: bool = True) -> str:
    """The tables, or only their summaries."""
    about = seen[0]["machine"]
    parts = [
        (
            f"`{seen[0]['command']}`: {about['host cpu']}, {about['cores']} cores, "
            f"{about['software']}, {seen[0]['date']}"
        )
    ]
    for table, document in zip(tables, seen, strict=True):
        if rows:
            parts += [table.markdown(), _speed(document)]
        else:
            parts.append(f"**{table.title}**: {words(table.summary())}")
    return "\n\n".join(parts) + "\n"


def _write(
    tables: list[Table], seen: list[dict[str, Any]], wish: argparse.Namespace
) -> None:
    """What is there by now, so that a later failure does not lose it."""
    text = _text(tables, seen)
    if wish.keep is not None:
        (wish.keep / "loop.json").write_text(json.dumps(seen, indent=1) + "\n")
        (wish.keep / "loop.md").write_text(text)
        (wish.keep / "loop.svg").write_text(drawing(tables))
    if wish.page is not None:
        put(wish.page, "loop", _text(tables, seen, rows=False))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
