"""Runs of `execute` whose workers and machines fail: does training go on as if not?

    python benchmarks/failures.py kills [--count 20]
    python benchmarks/failures.py elastic [--count 10]
    python benchmarks/failures.py soak [--steps 5000]

kills    workers are killed (SIGKILL) at random moments, in the middle of checkpoints
         too; every loss is held against the uninterrupted run's
elastic  two machines, network namespaces where they can be made, one of which is lost
         (killed, or its link cut) and comes back; the layouts, and the losses
soak     thousands of steps with kills: memory and open files of every process

    --seed N         of the moments
    --cold           without the process that workers are forked from
    --keep FOLDER    leave the summary and the logs there
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.namespaces import NotAllowed, network  # noqa: E402
from benchmarks.running import (  # noqa: E402
    COLD,
    START,
    Running,
    Wrong,
    descendants,
    execute,
    furthest,
    layout,
    losses,
    parent_of,
    require_sound,
    strays,
    uninterrupted,
)

PER_RUN = 4
STEPS, EVERY = 60, 5
PORT = 29610
SAMPLE_S = 1.0
COLOURS = "resident MB: launcher grey, fork server orange, workers blue"


@dataclass(kw_only=True)
class Kills:
    """What came of a run whose workers were killed."""

    difference: float
    goodput: dict[str, Any]
    restarts_s: list[float] = field(default_factory=list)  # kill to ready
    during: list[str] = field(default_factory=list)


def killed(
    file: Path, folder: Path, whole: Sequence[float], draw: Random, *, count: int
) -> Kills:
    """A run in which *count* random workers are killed, each at a random moment."""
    words = (
        f"{file} --device cpu --steps {STEPS} --checkpoint-every {EVERY} "
        f"--checkpoint-dir states --log log.jsonl --max-restarts {count}"
    )
    times: list[float] = []
    with execute(words, folder) as running:
        for number in range(count):
            running.until(
                lambda: len(running.events("ready")) > number,  # noqa: B023
                "first step",
            )
            done = len(running.events("step"))
            aim = draw.randrange(1, STEPS // count)
            running.until(
                lambda: len(running.events("step")) >= done + aim,  # noqa: B023
                "later step",
            )
            if number % 2:
                time.sleep(draw.uniform(0, 0.1))
            else:
                running.until(running.saving, "checkpoint")
                time.sleep(draw.uniform(0, 0.04))
            at = time.time()
            os.kill(draw.choice(running.workers()), signal.SIGKILL)
            running.until(
                lambda: len(running.events("ready")) > number + 1,  # noqa: B023
                "new start",
            )
            times.append(running.events("ready")[number + 1]["time"] - at)
        document = running.document()
        said = running.ended()
        if descendants(running.process.pid) or strays(folder):
            raise Wrong("processes are left")
    require_sound(folder / "states")
    return Kills(
        difference=furthest(losses(folder / "log.jsonl"), whole),
        goodput=document["goodput"],
        restarts_s=times,
        during=[line for line in said.splitlines() if "a worker died" in line],
    )


def kills(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """The campaign of killed workers."""
    file, draw = layout(folder), Random(seed)
    whole = uninterrupted(file, folder / "whole", STEPS)
    found = []
    for number in range(-(-count // PER_RUN)):
        one = killed(file, folder / f"run-{number}", whole, draw, count=PER_RUN)
        print(
            f"run {number}: losses differ by {one.difference:.1e}; restarts "
            f"{', '.join(f'{s:.2f}' for s in one.restarts_s)} s; goodput "
            f"{one.goodput['measured']:.1%}, predicted {one.goodput['predicted']:.1%}",
            flush=True,
        )
        found.append(one)
    times = [seconds for one in found for seconds in one.restarts_s]
    moments = [line for one in found for line in one.during]
    return {
        "kills": len(times),
        "runs": len(found),
        "largest difference of a loss": max(one.difference for one in found),
        "restart_s": {"median": median(times), "most": max(times)},
        "killed while saving": sum("saving" in line for line in moments),
        "killed while starting": sum(
            "joining" in line or "its start" in line for line in moments
        ),
        "goodput": [
            {key: one.goodput[key] for key in ("measured", "predicted")}
            for one in found
        ],
        "left": "no process, no half-written checkpoint",
    }


@dataclass(kw_only=True)
class Host:
    """One of two machines, and how it is lost and comes back."""

    within: Sequence[str]
    cut: Callable[[bool], None] | None = None  # its link: down, or up again


@contextmanager
def hosts() -> Iterator[tuple[str, list[Host]]]:
    """Where two meet, and both: network namespaces, or where none can be made, this
    machine twice."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(network(2))
        except NotAllowed as error:
            print(f"both machines are this one: {error}", file=sys.stderr)
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            stack.callback(os.environ.pop, "GLOO_SOCKET_IFNAME")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                endpoint = f"127.0.0.1:{free.getsockname()[1]}"
            yield endpoint, [Host(within=()), Host(within=())]
            return

        def cut(down: bool) -> None:
            state = "down" if down else "up"
            words = f"ip -n {made.hub} link set port1 {state}"
            subprocess.run(words.split(), check=True)

        far = Host(within=made.inside(1, []), cut=cut)
        yield f"{made.address(0)}:{PORT}", [Host(within=made.inside(0, [])), far]


@dataclass(kw_only=True)
class Elastic:
    """A run whose second machine is lost and comes back, again and again."""

    first: Running
    events: list[dict[str, Any]] = field(default_factory=list)

    def change(self, what: str, change: Callable[[], Any]) -> Any:
        """Train a while, let *change* happen, and wait until all train again."""
        done = len(self.first.events("step"))
        self.first.until(
            lambda: len(self.first.events("step")) > done + 3 * EVERY, "steps"
        )
        ready, at = len(self.first.events("ready")), time.time()
        made = change()
        self.first.until(lambda: len(self.first.events("ready")) > ready, what)
        now = self.first.events("ready")[-1]
        self.events.append(
            {
                "event": what,
                "seconds": now["time"] - at,
                "machines": self.first.events("started")[-1]["machines"],
                "from step": now["step"],
            }
        )
        print(json.dumps(self.events[-1]), flush=True)
        return made


def end_host(running: Running) -> None:
    """All of a machine's processes at once."""
    for pid in (*descendants(running.process.pid), running.process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    running.process.wait()


def elastic(folder: Path, count: int, steps: int) -> dict[str, Any]:
    """At least *count* changes of the machines of one run: the second is killed, and
    its command given again; its link is cut, and healed."""
    file = layout(folder)
    states, log = folder / "states", folder / "log.jsonl"
    history = states / "history.jsonl"
    with hosts() as (endpoint, (near, far)), ExitStack() as stack:
        words = (
            f"{file} --device cpu --steps {steps} --timeout 60 "
            f"--checkpoint-every {EVERY} --checkpoint-dir {states} --log {log} "
            f"--nnodes 2 --elastic 1 --rdzv-endpoint {endpoint}"
        )

        def start(host: Host, name: str) -> Running:
            one = execute(words, folder / name, within=host.within, history=history)
            return stack.enter_context(one)

        run = Elastic(first=start(near, "first"))
        second = start(far, "second")
        while len(run.events) < count:
            if far.cut is not None and len(run.events) % 4 == 2:
                run.change("link cut", partial(far.cut, True))
                run.change("link healed", partial(far.cut, False))
                continue
            run.change("killed", partial(end_host, second))
            name = f"second-{len(run.events)}"
            second = run.change("came back", partial(start, far, name))
        document = run.first.document()
        said = run.first.ended()
        if second.process.wait(30):
            raise Wrong(f"the second machine: {second.ended()}")
        if left := strays(folder):
            raise Wrong(f"processes are left: {left}")
    whole = uninterrupted(file, folder / "whole", steps)
    return {
        "events": run.events,
        "said": [line for line in said.splitlines() if "→" in line],
        "layouts": [
            {key: one[key] for key in ("step", "gpus", "machines")}
            for one in document["layouts"]
        ],
        "steps, each done once in what was kept": len(losses(log)),
        "largest difference of a loss": furthest(losses(log), whole),
        "goodput": document["goodput"],
    }


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A process at one moment."""

    at_s: float
    who: str  # launcher, server, or worker and its attempt
    resident_mb: float
    files: int


def sampled(running: Running, began: float) -> Iterator[Sample]:
    """The processes of a run now."""
    launcher, workers = running.process.pid, running.workers()
    attempt = len(running.events("started"))
    named = {launcher: "launcher"}
    named |= dict.fromkeys({parent_of(one) for one in workers}, "server")
    named[launcher] = "launcher"
    named |= {one: f"attempt {attempt}, worker {one}" for one in workers}
    for pid, who in named.items():
        with suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            yield Sample(
                at_s=time.monotonic() - began,
                who=who,
                resident_mb=pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
                files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
            )


def soak(folder: Path, count: int, steps: int, seed: int) -> dict[str, Any]:
    """One run of many steps whose workers are killed *count* times."""
    file, draw = layout(folder), Random(seed)
    words = (
        f"{file} --device cpu --steps {steps} --checkpoint-every 50 "
        f"--checkpoint-dir states --log log.jsonl --max-restarts {count}"
    )
    moments = sorted(draw.sample(range(steps // 50, steps), count))
    samples: list[Sample] = []
    began = time.monotonic()
    with execute(words, folder / "run") as running:
        while running.process.poll() is None:
            samples += sampled(running, began)
            done = max([one["step"] for one in running.events("step")], default=0)
            if moments and done >= moments[0] and (workers := running.workers()):
                os.kill(draw.choice(workers), signal.SIGKILL)
                moments.pop(0)
            time.sleep(SAMPLE_S)
        document = running.document()
    require_sound(folder / "run" / "states")
    (folder / "soak.svg").write_text(drawn(samples))
    return {
        "steps": len(losses(folder / "run" / "log.jsonl")),
        "kills": count,
        "seconds": samples[-1].at_s,
        "processes": list(grown(samples)),
        "goodput": document["goodput"],
    }


def grown(samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """Of every process that was there long enough: memory and files when a third of
    its time was over, and at its end."""
    for who in dict.fromkeys(one.who for one in samples):
        own = [one for one in samples if one.who == who]
        third, last = own[len(own) // 3], own[-2 if len(own) > 1 else -1]
        if last.at_s - third.at_s >= 5 * SAMPLE_S:
            yield {
                "who": who,
                "seconds": round(last.at_s - own[0].at_s),
                "resident_mb": [
                    round(third.resident_mb, 1),
                    round(last.resident_mb, 1),
                ],
                "files": [third.files, last.files],
            }


def drawn(samples: Sequence[Sample]) -> str:
    """Resident memory over time, a line a process, as SVG."""
    width, height, left, foot = 900, 360, 60, 30
    longest = max(one.at_s for one in samples)
    most = max(one.resident_mb for one in samples) * 1.1

    def place(at_s: float, megabytes: float) -> str:
        x = left + (width - left - 10) * at_s / longest
        return f"{x:.1f},{height - foot - (height - foot - 20) * megabytes / most:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text { font: 12px sans-serif } polyline { fill: none }</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="14">{COLOURS}</text>',
    ]
    for share in (0.25, 0.5, 0.75):
        _, y = place(0, most * share).split(",")
        parts.append(f'<text x="4" y="{y}">{most * share:.0f}</text>')
        line = f'x1="{left}" x2="{width}" y1="{y}" y2="{y}"'
        parts.append(f'<line {line} stroke="#ddd"/>')
    parts.append(f'<text x="{width - 60}" y="{height - 8}">{longest:.0f} s</text>')
    for who in dict.fromkeys(one.who for one in samples):
        colour = {"launcher": "#888", "server": "#d9761a"}.get(who, "#1f6fb4")
        own = [place(one.at_s, one.resident_mb) for one in samples if one.who == who]
        parts.append(f'<polyline stroke="{colour}" points="{" ".join(own)}"/>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["kills", "elastic", "soak"])
    parser.add_argument("--count", type=int)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--cold", action="store_true")
    asked = parser.parse_args()
    if asked.cold:
        START[:] = ["-c", COLD]
    with ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="failures-"))
        folder = (asked.keep or Path(made)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if asked.what == "kills":
            summary = kills(folder, asked.count or 20, asked.seed)
        elif asked.what == "elastic":
            summary = elastic(folder, asked.count or 10, asked.steps)
        else:
            summary = soak(folder, asked.count or 8, asked.steps, asked.seed)
        print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
