"""Freeze what the commands answer, and compare after a change that changes nothing.

    python -m benchmarks.frozen write answers.json
    python -m benchmarks.frozen compare answers.json

Some 300 questions of all commands: plans, islands, unlike stages, offload, experts,
adapters, inference, sweeps, diagnoses, wrong questions; every published run's estimate
(where MESHWRIGHT_DATA names them); and the layouts of the numerics matrix. Timings and
the paths of temporary files are left out. `compare` names each question whose answer
differs, and where; exit 1 if any does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

from benchmarks.random_questions import differences, some_layout
from tests.support.training_cases import WORLDS, cases_of

PLANS: Final = (
    *("gpt-tiny 4 cpu", "gpt-mini 2 cpu", "gpt-125m 8 a100-pcie"),
    *("gpt-1.3b 8 dgx-v100-32gb", "gpt-1.3b 7 dgx-a100-80gb", "gpt-6.7b 6 rtx4090-8x"),
    *("gpt-13b 64 dgx-a100-80gb", "gpt-13b 8 dgx-a100-40gb", "gpt-22b 16 dgx-h100"),
    *("llama2-7b 8 l40s-8x", "llama3-8b 8 l40s-8x", "llama3-8b 16 gb200-nvl72"),
    *("llama3-70b 64 dgx-h100", "qwen3-0.6b 4 rtx4090-8x", "qwen3-8b 8 mi300x-8x"),
    *("mistral-7b 16 p4d.24xlarge", "mixtral-8x7b 32 dgx-h100", "palm-8b 64 tpu-v4"),
    *("qwen3-30b-a3b 16 hgx-h200", "deepseek-v2-lite 8 dgx-h100"),
    *("gpt-oss-20b 8 dgx-b200", "dbrx 64 dgx-h100", "gpt-175b 1024 dgx-a100-80gb"),
)
PLAN_WITH: Final = (
    *("", "--objective memory", "--top 8", "--tokens 1e11", "--explain"),
    *("--offload optimizer", "--recompute full", "--framework megatron-core"),
    *("--framework fsdp2", "--executable", "--pp 2", "--tp 2 --zero 1", "--any-stage"),
)
WRONG: Final = (
    *("plan --model gpt-13c --gpus 8", "plan --model gpt-13b --gpus 0"),
    *("plan --model gpt-13b --gpus 8 --tp 3", "plan --model gpt-175b --gpus 1"),
    *("simulate --model gpt-13b --gpus 8 --tp 16", "simulate nothing.json"),
    *("plan --model gpt-13b --gpus 8 --cluster dgx", "simulate --model gpt-13b"),
    *("plan --model deepseek-v3 --gpus 8", "plan --model gpt-1t --gpus 16"),
    *("profile --show nothing.json", "execute nothing.json", "plan --search quick"),
)
OTHERS: Final = (
    *("plan --model gpt-mini --gpus 4 --search exhaustive --cluster cpu",),
    *("plan --model gpt-1.3b --gpus 8 --search megatron",),
    *("plan --model gpt-1.3b --gpus 8 --search hf-ladder",),
    *("plan --model gpt-1.3b --gpus 8 --search fsdp",),
    *("plan --model gpt-1.3b --gpus 8 --search deepspeed",),
    *("plan --model gpt-1.3b --gpus 8 --search pipedream",),
    *("plan --model gpt-1.3b --gpus 8 --search recursive",),
    *("plan --model gpt-13b --gpus 8,16,32",),
    *("plan --model gpt-13b --gpus 8 --maximize seq-len",),
    *("plan --model gpt-mini --gpus 8 --shardings",),
    *("simulate --model gpt-13b --gpus 64 --tp 4 --pp 2 --sweep tp=1,2,4,8",),
    *("simulate --model gpt-1.3b --gpus 8 --compare-data-parallel",),
    *("simulate --model llama3-8b --gpus 1 --inference --cluster dgx-h100",),
    *("simulate --model llama3-70b --gpus 8 --inference --tp 8 --cluster dgx-h100",),
    *("simulate --model mixtral-8x7b --gpus 4 --inference --tp 4 --cluster dgx-h100",),
)
PROGRAMS: Final = {
    "plan": "planner",
    "simulate": "costmodel",
    "profile": "profiles",
    "execute": "runtime",
}
TIMINGS: Final = ("seconds",)
RANDOM_LAYOUTS: Final = 120


def questions() -> list[str]:
    """All of them, as command lines."""
    chance = random.Random(0)
    plans = [
        f"plan --model {model} --gpus {gpus} --cluster {cluster} {extra}".strip()
        for model, gpus, cluster in map(str.split, PLANS)
        for extra in ("", *chance.sample(PLAN_WITH[1:], 5))
    ]
    layouts = [
        f"simulate {shlex.join(some_layout(chance))}" for _ in range(RANDOM_LAYOUTS)
    ]
    return [*plans, *layouts, *OTHERS, *WRONG]


def answer(question: str) -> dict[str, Any]:
    """Exit code and document, or what was said instead."""
    program, *argv = shlex.split(question)
    entry = __import__(f"{PROGRAMS[program]}.__main__", fromlist=["main"]).main
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = entry([*argv, "--json"], program)
    text = out.getvalue()
    said = err.getvalue() if code else ""
    return {"code": code, "document": untimed(json.loads(text)) if text else said}


def untimed(found: Any) -> Any:
    """*found* without what differs from run to run."""
    if isinstance(found, dict):
        return {k: untimed(v) for k, v in found.items() if k not in TIMINGS}
    return [untimed(one) for one in found] if isinstance(found, list) else found


def all_answers() -> Iterator[tuple[str, Any]]:
    for question in questions():
        yield question, answer(question)
    if data := os.environ.get("MESHWRIGHT_DATA"):
        runs = str(Path(data, "runs.csv"))
        found = answer(f"simulate --runs {shlex.quote(runs)}")
        for row in found["document"]["runs"]:
            yield f"published run {row['row']}", row["estimate"] or row["error"]
    yield "numerics matrix", {str(one): cases_of(one) for one in WORLDS}


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "compare"):
        print((__doc__ or "").split("\n\n")[1], file=sys.stderr)
        return 2
    verb, path = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        now = dict(all_answers())
    if verb == "write":
        path.write_text(json.dumps(now, sort_keys=True))
        print(f"{len(now):,} answers")
        return 0
    before = json.loads(path.read_text())
    now = json.loads(json.dumps(now))
    changed = 0
    for question in sorted({*before, *now}):
        found = list(differences(before.get(question), now.get(question)))
        if found:
            changed += 1
            at, was, is_now = found[0]
            print(f"{question}\n    {at}: {str(was)[:120]} -> {str(is_now)[:120]}")
    print(f"{len(now):,} answers, {changed} differ")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
