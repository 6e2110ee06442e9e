"""Ask thousands of random questions, and hold the answers to what each must keep.

    python -m benchmarks.random_questions [--count 10000] [--seed 0] [--workers 2]

Each question is an argument list of `simulate` or `plan` with `--json`, answered in
process. The laws:

    file      what `simulate --out` writes is priced by `simulate FILE` as it was
    pin       a part of a recommendation, pinned, gives the same recommendation
    top       `--top K` names the first K of what a larger K names, in order
    limit     `plan --time-limit S` answers, or says no, within S and a second
    any       the exit code is 0, 1 or 2, and standard output is one document or none

Prints one line a law, and what failed, each with the command that shows it; exit 1 if
any did. `--slack` is what a loaded machine may add to a time limit.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from costmodel.__main__ import main as simulate_main
from planner.__main__ import main as plan_main

SMALL: Final = (
    *("gpt-tiny", "gpt-mini", "gpt-125m", "gpt-350m", "gpt-1.3b"),
    *("qwen3-0.6b", "llama3.2-1b", "gpt2"),
)
LARGE: Final = ("gpt-13b", "llama3-8b", "mixtral-8x7b", "deepseek-v2", "qwen3-30b-a3b")
CLUSTERS: Final = (
    *("dgx-a100-80gb", "dgx-a100-80gb", "dgx-a100-40gb", "dgx-h100", "dgx-v100-32gb"),
    *("a100-pcie", "l40s-8x", "rtx4090-8x", "gb200-nvl72", "p3.16xlarge"),
)
FRAMEWORKS: Final = (
    *("megatron-core", "megatron-lm", "megatron-deepspeed", "deepspeed", "fsdp2"),
    *("torchtitan", "nemo"),
)
RECOMPUTES: Final = ("none", "selective", "cheap-ops", "full", "sqrt", "auto")
SCHEDULES: Final = (
    *("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "chimera"),
)
LIKE: Final = 1e-9  # relative difference of what is the same
TIMES: Final = "seconds"  # the one member that differs from run to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said: exit code, document, seconds."""

    code: int
    document: dict[str, Any] | None
    said: str
    seconds: float


@dataclass(slots=True)
class Tally:
    """How many questions of each law were asked, answered, and failed."""

    asked: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slack_s: float = 1.0

    def add(self, other: Tally) -> None:
        self.asked += other.asked
        self.answered += other.answered
        self.failures += other.failures


def ask(program: str, *argv: str) -> Answer:
    """Answer one question in this process."""
    entry = {"simulate": simulate_main, "plan": plan_main}[program]
    out, err = io.StringIO(), io.StringIO()
    began_s = perf_counter()
    with redirect_stdout(out), redirect_stderr(err):
        code = entry([*argv, "--json"], program)
    seconds = perf_counter() - began_s
    text = out.getvalue()
    return Answer(
        code=code,
        document=json.loads(text) if text else None,
        said=err.getvalue().strip(),
        seconds=seconds,
    )


def some_divisor(number: int, chance: random.Random) -> int:
    return chance.choice([one for one in range(1, number + 1) if number % one == 0])


def some_workload(chance: random.Random, *, large: float) -> tuple[list[str], int]:
    """Model, cluster, batch and framework; and how many GPUs."""
    big = chance.random() < large
    gpus = chance.choice((8, 16, 32) if big else (1, 2, 3, 4, 6, 8, 16))
    argv = ["--model", chance.choice(LARGE if big else SMALL), "--gpus", str(gpus)]
    argv += ["--cluster", chance.choice(CLUSTERS)]
    argv += ["--global-batch", str(gpus * chance.choice((1, 2, 3, 4, 8)))]
    if chance.random() < 0.2:
        argv += ["--seq-len", str(chance.choice((512, 1024, 1536, 4096)))]
    if chance.random() < 0.3:
        argv += ["--framework", chance.choice(FRAMEWORKS)]
    return argv, gpus


def some_layout(chance: random.Random) -> list[str]:
    """A question of `simulate`; perhaps one in two is legal."""
    argv, gpus = some_workload(chance, large=0.4)
    tp = some_divisor(gpus, chance)
    pp = some_divisor(gpus // tp, chance)
    cp = some_divisor(gpus // tp // pp, chance) if chance.random() < 0.3 else 1
    argv += ["--tp", str(tp), "--pp", str(pp), "--cp", str(cp)]
    dp = gpus // tp // pp // cp
    zero = chance.randrange(4)
    argv += ["--zero", str(zero)]
    schedule = chance.choice(SCHEDULES)
    sometimes: list[tuple[float, Callable[[], Iterable[str]]]] = [
        (0.5, lambda: ("--micro-batch", str(chance.choice((1, 2, 4))))),
        (0.5, lambda: ("--recompute", chance.choice(RECOMPUTES))),
        (0.2 if zero else 0, lambda: ("--zero-group", str(some_divisor(dp, chance)))),
        (0.3 if tp > 1 else 0, lambda: ("--no-sequence-parallel",)),
        (0.6 if pp > 1 else 0, lambda: ("--schedule", schedule)),
        (0.5 if schedule == "interleaved" else 0, lambda: ("--virtual-stages", "2")),
        (0.5 if cp > 1 else 0, lambda: ("--cp-kind", chance.choice(KINDS))),
        (0.2, lambda: ("--precision", chance.choice(("amp-bf16", "fp16", "fp32")))),
        (0.2, lambda: ("--grad-dtype", chance.choice(("fp32", "bf16")))),
        (0.2, lambda: ("--overlap", chance.choice(("none", "grad", "grad,param")))),
        (0.1, lambda: ("--bucket-mb", str(chance.choice((1, 25, 100000))))),
        (0.1, lambda: ("--offload", chance.choice(("optimizer", "activations=0.5")))),
        (0.1, lambda: ("--no-flash-attention",)),
        (0.2, lambda: ("--ep", str(some_divisor(8, chance)))),
        (0.1, lambda: ("--optimizer", "sgd")),
        (0.1, lambda: ("--imbalance", "1.4")),
    ]
    for share, options in sometimes:
        if chance.random() < share:
            argv += options()
    return argv


KINDS: Final = ("ring", "all-gather", "ulysses")


def file_law(chance: random.Random, folder: Path, tally: Tally) -> None:
    argv, path = some_layout(chance), folder / "layout.json"
    path.unlink(missing_ok=True)
    first = _asked(tally, "file", "simulate", [*argv, "--out", str(path)])
    if first is None or first.document is None or first.code != 0:
        return
    again = ask("simulate", str(path))
    tally.answered["file"] += 1
    if again.code or again.document is None:
        _fail(tally, "file", "simulate", argv, f"read back: {again.said}")
        return
    for name in ("assumed", "warnings"):
        first.document.pop(name)
        again.document.pop(name)
    for path_of, one, other in differences(first.document, again.document):
        _fail(tally, "file", "simulate", argv, f"{path_of}: {one} then {other}")
        return


def pin_law(chance: random.Random, folder: Path, tally: Tally) -> None:
    argv = some_problem(chance)
    first = _asked(tally, "pin", "plan", argv)
    if first is None or first.document is None or first.code != 0:
        return
    options = options_of(first.document["layout"], argv)
    some = chance.sample(options, chance.randint(1, min(3, len(options))))
    pinned = [*argv, *(word for option in some for word in option)]
    again = _asked(tally, "pin", "plan", pinned)
    if again is None:
        return
    tally.answered["pin"] += 1
    if again.code or again.document is None:
        _fail(tally, "pin", "plan", pinned, again.said)
        return
    counted = "peak_needed_bytes" if "memory" in argv else "step_time_s"
    was, now = (one.document["estimate"][counted] for one in (first, again))
    if abs(was - now) > LIKE * was:
        _fail(tally, "pin", "plan", pinned, f"{was} unpinned, {now} pinned")


def top_law(chance: random.Random, folder: Path, tally: Tally) -> None:
    argv, few = some_problem(chance), chance.randint(1, 6)
    many = few + chance.randint(1, 8)
    answers = [
        _asked(tally, "top", "plan", [*argv, "--top", str(top)]) for top in (few, many)
    ]
    if any(one is None or one.document is None or one.code for one in answers):
        return
    tally.answered["top"] += 1
    counted = "peak_needed_bytes" if "memory" in argv else "step_time_s"
    steps = [
        [one["estimate"][counted] for one in each.document["alternatives"]]
        for each in answers
        if each is not None and each.document is not None
    ]
    asked = [*argv, "--top", str(few)]
    if steps[0] != steps[1][: len(steps[0])] or len(steps[0]) > few:
        _fail(tally, "top", "plan", asked, f"{steps[0]}, of {many}: {steps[1]}")
    elif len(steps[0]) < few and len(steps[1]) > len(steps[0]):
        _fail(tally, "top", "plan", asked, f"{len(steps[0])} where {len(steps[1])} are")
    elif steps[1] != sorted(steps[1]):
        _fail(tally, "top", "plan", asked, f"not in order: {steps[1]}")


def limit_law(chance: random.Random, folder: Path, tally: Tally) -> None:
    argv = some_problem(chance)
    limit = chance.choice((0.05, 0.2, 0.5, 1.0))
    extra = chance.choice(
        ([], [], ["--any-stage"], ["--tokens", "1e9"], ["--search", "megatron"])
    )
    argv = [*argv, "--time-limit", str(limit), *extra]
    answer = _asked(tally, "limit", "plan", argv)
    if answer is None:
        return
    tally.answered["limit"] += 1
    if answer.seconds > limit + tally.slack_s:
        _fail(tally, "limit", "plan", argv, f"took {answer.seconds:.2f} s")


LAWS: Final[dict[str, tuple[Callable[[random.Random, Path, Tally], None], float]]] = {
    "file": (file_law, 0.55),
    "pin": (pin_law, 0.15),
    "top": (top_law, 0.15),
    "limit": (limit_law, 0.15),
}


def some_problem(chance: random.Random) -> list[str]:
    """A question of `plan`."""
    argv, _ = some_workload(chance, large=0.15)
    if chance.random() < 0.2:
        argv += ["--objective", chance.choice(("memory", "time-to-train"))]
    if chance.random() < 0.1:
        argv += ["--any-stage"]
    return argv


def options_of(layout: dict[str, Any], argv: list[str]) -> list[list[str]]:
    """The pins that *layout*, a recommendation for *argv*, would be asked with."""
    summary = layout["summary"]
    named = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_batch")
    found = [
        [f"--{name.replace('_', '-')}", str(summary[name])]
        for name in named
        if summary.get(name) is not None
    ]
    found.append(["--micro-batches", str(layout["micro_batches"])])
    found.append(["--schedule", layout["schedule"]])
    if "--micro-batch" in argv:
        found = [one for one in found if one[0] != "--micro-batches"]
    return found


def differences(one: Any, other: Any, at: str = "") -> Iterable[tuple[str, Any, Any]]:
    """Where two documents differ by more than rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key != TIMES:
                yield from differences(one.get(key), other.get(key), f"{at}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{at}[{place}]")
    elif isinstance(one, float) and isinstance(other, float | int):
        if abs(one - other) > LIKE * max(abs(one), abs(other)):
            yield at, one, other
    elif one != other:
        yield at, one, other


def _asked(tally: Tally, law: str, program: str, argv: list[str]) -> Answer | None:
    """The answer, unless it breaks what any answer keeps."""
    tally.asked[law] += 1
    try:
        answer = ask(program, *argv)
    except Exception as error:
        _fail(tally, "any", program, argv, f"{type(error).__name__}: {error}")
        return None
    if answer.code not in (0, 1, 2) or "Traceback" in answer.said:
        _fail(tally, "any", program, argv, f"exit {answer.code}: {answer.said}")
        return None
    return answer


def _fail(tally: Tally, law: str, program: str, argv: list[str], why: str) -> None:
    tally.failures.append(f"{law}: {program} {shlex.join(argv)}\n      {why[:600]}")


def some_questions(task: tuple[int, int, float]) -> Tally:
    """Ask until *count* commands were run, from *seed* on."""
    seed, count, slack_s = task
    chance, tally = random.Random(seed), Tally(slack_s=slack_s)
    laws, shares = zip(*LAWS.values(), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        while tally.asked.total() < count:
            chance.choices(laws, shares)[0](chance, Path(folder), tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slack", type=float, default=1.0, metavar="SECONDS")
    asked = parser.parse_args()
    each = 100
    parts = range(-(-asked.count // each))
    tasks = [(asked.seed + place, each, asked.slack) for place in parts]
    tally = Tally()
    with ProcessPoolExecutor(asked.workers) as pool:
        for done, one in enumerate(pool.map(some_questions, tasks), 1):
            tally.add(one)
            failed = [*one.failures, f"{len(tally.failures)} failed"]
            said = "\n  ".join([f"{done * each:,} asked", *failed])
            print(said, file=sys.stderr, flush=True)
    for law in LAWS:
        failed = sum(line.startswith(f"{law}:") for line in tally.failures)
        print(
            f"{law:6} {tally.asked[law]:6,} commands {tally.answered[law]:6,} held "
            f"against the law {failed:4} failed"
        )
    print(f"{tally.asked.total():,} commands, {len(tally.failures)} failed")
    for line in tally.failures:
        print(f"  {line}")
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main())
