"""Every layout of the tests' matrix against one process in plain PyTorch.

python -m benchmarks.numerics                all by AdamW and by SGD: half an hour
python -m benchmarks.numerics --ranks 1 2    of so many ranks alone

--page docs/execute.md   put the summary between the page's markers
--keep FOLDER            write there what was seen: JSON, and a row a layout; what
                             it has of other numbers of ranks stays, and counts too
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.numerics_report import Row, rows_of, summary, whole_table
from benchmarks.pages import measuring, put
from profiles.measure.machine import cores, cpu_name, now
from tests.support.matrix import seen_by_all
from tests.support.training import ADAMW, SGD, STEPS
from tests.support.training_cases import WORLDS, cases_of

KEPT = "numerics.json"
Runs = dict[int, dict[str, Any]]  # by the number of ranks
OPTIMIZERS = {"adamw": ADAMW, "sgd": SGD}


def main() -> None:
    wish = _wish()
    runs = _before(wish.keep)
    for world in wish.ranks:
        runs[world] = {**_about(), "rows": []}
        for name, settings in OPTIMIZERS.items():
            runs[world]["rows"] += rows_of(
                name, seen_by_all(world, cases_of(world), settings)
            )
            print(f"{world} ranks by {name}", file=sys.stderr, flush=True)
        if wish.keep is not None:
            _keep(wish.keep, runs)
    text = f"{_head(runs)}\n\n{summary(_rows(runs))}\n"
    print(text)
    if wish.page is not None:
        put(wish.page, "numerics", f"\n{text}\n")


def _wish() -> argparse.Namespace:
    parser = measuring(__doc__)
    parser.add_argument(
        "--ranks", nargs="*", type=int, default=list(WORLDS), choices=WORLDS
    )
    return parser.parse_args()


def _about() -> dict[str, Any]:
    """The command, and the machine that it ran on."""
    command = shlex.join(["python", "-m", "benchmarks.numerics", *sys.argv[1:]])
    on = f"{cpu_name()}, {cores()} cores, gloo, torch-{torch.__version__}"
    return {"command": command, "machine": on, "date": now(), "steps": STEPS}


def _rows(runs: Runs) -> list[Row]:
    return [row for _, run in sorted(runs.items()) for row in run["rows"]]


def _head(runs: Runs) -> str:
    """What was run, on which machine and when: a line a command."""
    lines = {
        run["command"]: "`{command}`: {machine}, {date}".format(**run)
        for _, run in sorted(runs.items())
    }
    steps = " and ".join(f"{count} steps by {name}" for name, count in STEPS.items())
    return "  \n".join(lines.values()) + f"  \n{steps}"


def _before(folder: Path | None) -> Runs:
    """What *folder* has of a run before, by the number of ranks."""
    if folder is None or not (folder / KEPT).exists():
        return {}
    runs = json.loads((folder / KEPT).read_text())
    return {
        int(world): {**run, "rows": [Row(**row) for row in run["rows"]]}
        for world, run in runs.items()
    }


def _keep(folder: Path, runs: Runs) -> None:
    """What is there by now, so that a later failure does not lose it."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        world: {**run, "rows": [row._asdict() for row in run["rows"]]}
        for world, run in sorted(runs.items())
    }
    (folder / KEPT).write_text(json.dumps(document, indent=1) + "\n")
    rows = _rows(runs)
    text = f"{_head(runs)}\n\n{summary(rows)}\n\n{whole_table(rows)}\n"
    (folder / "numerics.md").write_text(text)


if __name__ == "__main__":
    main()
