"""Profile this machine, plan for it, train with the plan and others, compare.

    python benchmarks/loop.py [--model gpt-mini] [--ranks 2] [--device cpu] [--steps 8]

Every prediction is made before its run, from the profile and the catalogue alone. The
commands are those that a user types; what they print is in the table:

    --page docs/loop.md    put the table between the page's markers
    --keep FOLDER          leave samples, layouts and results there
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(?<=<!-- loop -->\n).*?(?=<!-- end of the loop -->)", re.S)
SEVERAL = {
    "dp": "--dp {ranks} --zero 0 --micro-batch 2",
    "zero 1": "--dp {ranks} --zero 1 --micro-batch 2",
    "zero 3": "--dp {ranks} --zero 3 --micro-batch 4",
    "tp": "--tp {ranks} --micro-batch 2",
    "pp": "--pp {ranks} --micro-batch 2",
    "pp, interleaved": "--pp {ranks} --virtual-stages 2 --micro-batch 1",
}
ALONE = {
    "micro-batch 1": "--micro-batch 1",
    "micro-batch 2": "--micro-batch 2",
    "micro-batch 4": "--micro-batch 4",
    "micro-batch 4, recompute full": "--micro-batch 4 --recompute full",
    "micro-batch 8, recompute full": "--micro-batch 8 --recompute full",
    "micro-batch 2, recompute selective": "--micro-batch 2 --recompute selective",
}
OTHERS = 5  # executed beside the plan
ROUNDS = 3  # through all layouts, so that a machine's drift meets each alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layout: predicted, then carried out."""

    name: str
    predicted_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float

    @property
    def time_error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


def run(program: str, arguments: str, folder: Path) -> dict[str, Any]:
    """A command of this checkout with --json; its document. Exits if it fails."""
    print(f"$ {program} {arguments}", file=sys.stderr, flush=True)
    beside = Path(sys.executable).parent / program
    done = subprocess.run(
        [str(beside), *shlex.split(arguments), "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise SystemExit(f"{program} ended with exit code {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def measured(
    name: str, file: str, wish: argparse.Namespace, folder: Path
) -> tuple[Row, dict[str, Any]]:
    """Train with a layout file, and hold the prediction against the run."""
    seen = run(
        "execute",
        f"{file} --steps {wish.steps} --device {wish.device} --profile samples.json",
        folder,
    )
    row = Row(
        name=name,
        predicted_s=seen["predicted"]["step_time_s"],
        measured_s=seen["step_time_s"]["median"],
        predicted_bytes=seen["predicted"]["peak_allocated_bytes"],
        measured_bytes=max(seen["peak_allocated_bytes"]),
    )
    return row, seen


def loop(wish: argparse.Namespace, folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """Profile, plan, execute; the rows, and every document."""
    quick = "--quick" if wish.quick else ""
    question = f"--model {wish.model}"
    profiled = run(
        "profile",
        f"--out samples.json --device {wish.device} --nproc {wish.ranks} {quick} "
        f"{question} {wish.profile_options}",
        folder,
    )
    local = (
        f"{question} --gpus {wish.ranks} --cluster local --profile samples.json "
        f"{wish.options}"
    )
    planned = run("plan", f"{local} --out plan.json", folder)
    documents: dict[str, Any] = {"profile": profiled, "plan": planned, "runs": {}}
    files = {"the plan": "plan.json"}
    for name, options in (SEVERAL if wish.ranks > 1 else ALONE).items():
        file = f"{re.sub('[^a-z0-9]+', '-', name)}.json"
        found = run(
            "simulate",
            f"{local} {options.format(ranks=wish.ranks)} --out {file}",
            folder,
        )
        if found["layout"] != planned["layout"] and found["fits"]:
            files[name] = file
    chosen = list(files.items())[: OTHERS + 1]
    found: dict[str, list[Row]] = {name: [] for name, _ in chosen}
    for _ in range(ROUNDS):
        for name, file in chosen:
            row, seen = measured(name, file, wish, folder)
            found[name].append(row)
            documents["runs"].setdefault(name, []).append(seen)
    return [in_the_middle(rows) for rows in found.values()], documents


def in_the_middle(rows: list[Row]) -> Row:
    """Of a layout's runs, the one of median step time."""
    return sorted(rows, key=lambda row: row.measured_s)[len(rows) // 2]


def table(rows: list[Row]) -> str:
    """Predicted beside measured, as Markdown, and the errors."""
    lines = [
        (
            "| layout | step predicted | measured | error | peak predicted | measured |"
            " error |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row.name} | {row.predicted_s:.3f} s | {row.measured_s:.3f} s | "
            f"{row.time_error:+.1%} | {row.predicted_bytes / 1e9:.3f} GB | "
            f"{row.measured_bytes / 1e9:.3f} GB | {row.memory_error:+.1%} |"
        )
    times = [abs(row.time_error) for row in rows]
    peaks = [abs(row.memory_error) for row in rows]
    lines += [
        "",
        (
            f"step time: mean error {sum(times) / len(times):.1%}, largest "
            f"{max(times):.1%}; peak memory: mean {sum(peaks) / len(peaks):.1%}, "
            f"largest {max(peaks):.1%}; {ordered(rows)}"
        ),
    ]
    return "\n".join(lines)


def ordered(rows: list[Row]) -> str:
    """How many pairs of layouts the prediction puts in the order that was measured."""
    pairs = list(combinations(rows, 2))
    right = sum(
        (one.predicted_s < two.predicted_s) == (one.measured_s < two.measured_s)
        for one, two in pairs
    )
    return f"{right} of {len(pairs)} pairs in the right order"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="gpt-mini")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--options", default="", help="of plan and simulate")
    parser.add_argument("--profile-options", default="", help="of profile")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--keep", type=Path)
    wish = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (wish.keep or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        rows, documents = loop(wish, folder)
        (folder / "loop.json").write_text(json.dumps(documents, indent=1))
    about = documents["profile"]["machine"]
    text = (
        f"{wish.model}, {wish.ranks} ranks on {wish.device}: {about['host cpu']}, "
        f"{about['software']}, {datetime.now(UTC):%Y-%m-%d}\n\n{table(rows)}\n"
    )
    print(text)
    if wish.page is not None:
        page = wish.page.read_text()
        wish.page.write_text(MARKED.sub(lambda _: text, page))


if __name__ == "__main__":
    main()
