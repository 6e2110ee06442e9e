"""The loop on slower and slower networks: does the choice change as it should?

    python benchmarks/networks.py [--machines 2] [--networks 10gbit,1gbit,100mbit]

Machines are network namespaces of this one, joined by shaped links (`namespaces`), each
with a core of its own as far as there are. On every network: `profile` on all of them,
`plan`, then `execute` of the plan and of other layouts. Predictions are made before the
runs, from the profile alone. It takes the right to make namespaces; they are removed at
the end, whatever the end.

    --page docs/networks.md    put the table between the page's markers
    --keep FOLDER              leave samples, layouts, results and networks.json there
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.namespaces import GBIT, MBIT, Network, NotAllowed, network  # noqa: E402
from benchmarks.pages import measuring, put  # noqa: E402

PACKAGES = {
    "profile": "profiles",
    "simulate": "costmodel",
    "plan": "planner",
    "execute": "runtime",
}
LAYOUTS = {
    "dp": "--dp {machines} --zero 0 --micro-batch {most}",
    "zero 1": "--dp {machines} --zero 1 --micro-batch {most}",
    "pp, micro-batch 2": "--pp {machines} --micro-batch 2",
    "pp, micro-batch 1": "--pp {machines} --micro-batch 1",
    "tp": "--tp {machines} --micro-batch {most}",
}
MOST_MICRO_BATCH = 4
LONG_S, STEPS, FEW_STEPS = 2.0, 8, 5  # a run of long steps has fewer
MOST_LOSS = 0.05  # of the plan against the best that was measured
LIMIT_S = 300.0  # for one command on all machines
GRACE_S = 5.0
POLL_S = 0.1
PORTS = count(29400)  # a new one for each command: nothing of the last is in its way
UNITS = {"gbit": GBIT, "mbit": MBIT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A layout on a network: predicted, then carried out."""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One network; the first of *rows* is the plan, which is called *chosen*."""

    network: str
    chosen: str
    pipeline: bool
    rows: tuple[Row, ...]
    documents: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Row:
        return min(self.rows, key=lambda row: row.measured_s)

    @property
    def loss(self) -> float:
        """How much longer the plan's step took than the best one's."""
        return self.rows[0].measured_s / self.best.measured_s - 1


class Failed(Exception):
    """A command ended with an error, or not at all."""


def rates(text: str) -> dict[str, float]:
    """Bits a second by name.

    >>> rates("1gbit,100mbit")
    {'1gbit': 1000000000, '100mbit': 100000000}
    """
    found: dict[str, float] = {}
    for word in text.split(","):
        read = re.fullmatch(r"(\d+)(gbit|mbit)", word.strip().lower())
        if read is None or not int(read[1]):
            raise argparse.ArgumentTypeError(
                f"{word!r} is no rate; rates are such as 1gbit and 100mbit, with commas"
            )
        found[read[0]] = int(read[1]) * UNITS[read[2]]
    return found


def command(program: str, arguments: str) -> list[str]:
    """A command of this checkout, with --json."""
    package = PACKAGES[program]
    return [sys.executable, "-m", package, *shlex.split(arguments), "--json"]


def placed(made: Network, machine: int, words: Sequence[str]) -> list[str]:
    """*words* on a machine of *made*, and on the core that is its own."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[machine % len(cores)]
    return made.inside(machine, ["taskset", "--cpu-list", str(core), *words])


def here(program: str, arguments: str, folder: Path) -> dict[str, Any]:
    """The document of a command that needs no network."""
    print(f"$ {program} {arguments}", file=sys.stderr, flush=True)
    done = subprocess.run(
        command(program, arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{program} ended with exit code {done.returncode}: {done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def everywhere(
    made: Network, program: str, arguments: str, folder: Path
) -> list[dict[str, Any]]:
    """The documents of one command, given on all machines at once."""
    endpoint = f"{made.address(0)}:{next(PORTS)}"
    meet = f"--nnodes {made.machines} --rdzv-endpoint {endpoint}"
    print(f"$ {program} {arguments} {meet}", file=sys.stderr, flush=True)
    with ExitStack() as stack:
        started = []
        for machine in range(made.machines):
            own = arguments.replace("{machine}", str(machine))
            words = placed(made, machine, command(program, f"{own} {meet}"))
            started.append(stack.enter_context(process(words, folder, machine)))
        wait(started, program, folder)
    return [
        json.loads((folder / f"{machine}.out").read_text())
        for machine in range(made.machines)
    ]


@contextmanager
def process(
    words: Sequence[str], folder: Path, machine: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone when this is left."""
    with (
        (folder / f"{machine}.out").open("wb") as out,
        (folder / f"{machine}.err").open("wb") as errors,
        subprocess.Popen(
            words,
            cwd=folder,
            env=environment(),
            stdout=out,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for us: we end them
        ) as started,
    ):
        try:
            yield started
        finally:
            end(started)


def end(started: subprocess.Popen[bytes]) -> None:
    if started.poll() is None:
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(GRACE_S)
    if started.poll() is None:
        started.kill()


def wait(started: Sequence[subprocess.Popen[bytes]], what: str, folder: Path) -> None:
    """Until all have ended; raises Failed at the first that fails, or in the end."""
    end_s = time.monotonic() + LIMIT_S
    while any(one.poll() is None for one in started) or any(
        one.returncode for one in started
    ):
        for machine, one in enumerate(started):
            if one.poll():
                said = (folder / f"{machine}.err").read_text(errors="replace").strip()
                raise Failed(f"{what} on machine {machine} failed: {said[-2000:]}")
        if time.monotonic() > end_s:
            raise Failed(f"{what} took longer than {LIMIT_S:.0f} s and was ended")
        time.sleep(POLL_S)


def environment() -> dict[str, str]:
    """Of every command: this checkout, one thread a rank."""
    kept = {name: value for name, value in os.environ.items() if "GLOO" not in name}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def carried_out(
    made: Network, file: str, predicted_s: float, samples: str, folder: Path
) -> dict[str, Any]:
    """Train with a layout file; what rank 0's machine saw."""
    steps = STEPS if predicted_s < LONG_S else FEW_STEPS
    seen = everywhere(
        made, "execute", f"{file} --steps {steps} --device cpu {samples}", folder
    )
    first = next(one for one in seen if one.get("step_time_s"))
    measured_s = first["step_time_s"]["median"]
    print(f"  {predicted_s:.3f} s predicted, {measured_s:.3f} s", file=sys.stderr)
    return first


def outcome(
    made: Network, name: str, wish: argparse.Namespace, folder: Path
) -> Outcome:
    """Profile, plan and execute on one network."""
    job = f"--model {wish.model} --global-batch {wish.global_batch}"
    own = f"samples-{name}-{{machine}}.json"  # the same on each
    everywhere(made, "profile", f"--out {own} --quick --nproc 1 {job}", folder)
    samples = f"--profile {own.format(machine=0)}"
    asked = f"{job} --gpus {made.machines} --cluster local {samples}"
    planned = here("plan", f"{asked} --out plan-{name}.json", folder)
    files = {"the plan": f"plan-{name}.json"}
    predicted = {"the plan": planned["estimate"]["step_time_s"]}
    most = max(min(wish.global_batch // made.machines, MOST_MICRO_BATCH), 1)
    for layout, options in LAYOUTS.items():
        file = f"{re.sub('[^a-z0-9]+', '-', layout)}-{name}.json"
        words = options.format(machines=made.machines, most=most)
        priced = here("simulate", f"{asked} {words} --out {file}", folder)
        if priced["layout"] != planned["layout"]:
            files[layout] = file
            predicted[layout] = priced["step_time_s"]
    runs: dict[str, list[dict[str, Any]]] = {layout: [] for layout in files}
    for _ in range(wish.rounds):
        for layout, file in files.items():
            runs[layout].append(
                carried_out(made, file, predicted[layout], samples, folder)
            )
    summary = planned["layout"]["summary"]
    return Outcome(
        network=name,
        chosen=spoken(summary, planned["layout"]["schedule"]),
        pipeline=(summary["pp"] or 1) > 1,
        rows=tuple(row(layout, seen) for layout, seen in runs.items()),
        documents={"plan": planned, "runs": runs},
    )


def row(name: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    return Row(
        name=name,
        predicted_s=runs[0]["predicted"]["step_time_s"],
        measured_s=median(one["step_time_s"]["median"] for one in runs),
    )


def spoken(summary: Mapping[str, Any], schedule: str) -> str:
    """A layout in words: its degrees above 1.

    >>> spoken({"pp": 2, "dp": 1, "zero": 0, "micro_batch": 2}, "1f1b")
    'pp 2, micro-batch 2, 1f1b'
    """
    words = [
        f"{name} {summary[name]}"
        for name in ("tp", "pp", "dp", "cp", "ep")
        if (summary.get(name) or 1) > 1
    ]
    words += [f"zero {summary['zero']}"] if summary.get("zero") else []
    words.append(f"micro-batch {summary['micro_batch']}")
    words += [schedule] if (summary.get("pp") or 1) > 1 else []
    return ", ".join(words)


def table(outcomes: Sequence[Outcome]) -> str:
    """Predicted beside measured, and what became of the choice, as Markdown."""
    lines = [
        "| network | layout | step predicted | measured | error |",
        "|---|---|---:|---:|---:|",
    ]
    for one in outcomes:
        for place, item in enumerate(one.rows):
            name = f"**{item.name}**: {one.chosen}" if place == 0 else item.name
            lines.append(
                f"| {'' if place else one.network} | {name} | {item.predicted_s:.3f} s "
                f"| {item.measured_s:.3f} s | {item.error:+.1%} |"
            )
    lines.append("")
    for one in outcomes:
        verdict = "within" if one.loss <= MOST_LOSS else "NOT within"
        lines.append(
            f"{one.network}: the best measured is {one.best.name}; the plan takes "
            f"{one.loss:.1%} longer, {verdict} {MOST_LOSS:.0%}  "
        )
    errors = [abs(item.error) for one in outcomes for item in one.rows]
    lines += [
        "",
        f"step time: mean error {sum(errors) / len(errors):.1%}; {moved(outcomes)}",
    ]
    return "\n".join(lines)


def moved(outcomes: Sequence[Outcome]) -> str:
    """Whether data parallelism gave way to a pipeline, from the first network on."""
    if outcomes[0].pipeline:
        return f"a pipeline was chosen at {outcomes[0].network} already"
    for one in outcomes:
        if one.pipeline:
            return f"data parallelism gave way to a pipeline at {one.network}"
    return "no pipeline was chosen on any network"


def measured(wish: argparse.Namespace, folder: Path) -> list[Outcome]:
    """All networks, the fastest first."""
    found = []
    with network(wish.machines) as made:
        for name, rate in sorted(wish.networks.items(), key=lambda item: -item[1]):
            made.shape(rate)
            found.append(outcome(made, name, wish, folder))
            print(table(found), file=sys.stderr, flush=True)
    return found


def asked() -> argparse.Namespace:
    parser = measuring(__doc__)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument(
        "--networks", type=rates, default=rates("10gbit,1gbit,100mbit"), metavar="RATES"
    )
    parser.add_argument("--model", default="gpt-tiny")
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="through all layouts")
    return parser.parse_args()


def main() -> None:
    wish = asked()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces are removed
    with tempfile.TemporaryDirectory() as scratch:
        folder = (wish.keep or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            found = measured(wish, folder)
        except NotAllowed as error:
            sys.exit(f"networks: no namespaces here: {error}")
        except Failed as error:
            sys.exit(f"networks: {error}")
        except KeyboardInterrupt:
            sys.exit(130)
        (folder / "networks.json").write_text(
            json.dumps([asdict(one) for one in found], indent=1)
        )
    text = (
        f"{wish.model}, {wish.machines} machines of one rank, global batch "
        f"{wish.global_batch}, {datetime.now(UTC):%Y-%m-%d}\n\n{table(found)}\n"
    )
    print(text)
    if wish.page is not None:
        put(wish.page, "networks", text)


if __name__ == "__main__":
    main()
