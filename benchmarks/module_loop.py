"""profile → plan → execute of users' modules, and how far off predictions are.

python -m benchmarks.module_loop                      three modules: some minutes
python -m benchmarks.module_loop --models unet        one of them
python -m benchmarks.module_loop --out FILE.json      keep what was seen
python -m benchmarks.module_loop --page docs/modules.md

Each module is measured here, planned by the samples for two ranks, and trained. What a
busy machine does to step times it does not do to CPU time: of the forward and backward
of a micro-batch that is compared too, alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.pages import put
from tests.support.measured_module import HUGGING_FACE, OWN

MODULES: Final = {"resnet": OWN, "unet": OWN, "bert": HUGGING_FACE}
BATCH, STEPS = "16", "12"
Seen = dict[str, Any]


def seen(name: str) -> Seen:
    """The plan of one module, its prediction and what ran, in dp and in pp."""
    reference = f"{MODULES[name]}:{name}"
    module = ["--model", reference, "--global-batch", BATCH]
    found: Seen = {"module": name, "load": os.getloadavg()[0], "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        samples, layout = (str(Path(folder, one)) for one in ("s.json", "l.json"))
        asked = ["--device", "cpu", "--nproc", "2", "--quick", "--out", samples]
        measured = _command("profiles", *module, *asked)
        found["operators"] = measured["operators"]
        where = ["--gpus", "2", "--cluster", "local", "--profile", samples]
        for pinned in ([], ["--pp", "2"]):
            words = [*module, *where, "--executable", *pinned, "--out", layout]
            planned = _command("planner", *words)
            run = ["--model", reference, "--steps", STEPS, "--profile", samples]
            ran = _command("runtime", layout, *run, "--device", "cpu")
            summary = planned["layout"]["summary"]
            found["runs"].append(
                {
                    "layout": {one: summary[one] for one in ("tp", "pp", "dp", "zero")},
                    "micro_batch": summary["micro_batch"],
                    "predicted_s": ran["predicted"]["step_time_s"],
                    "compute_s": ran["predicted"]["breakdown_s"]["compute"],
                    "sources": ran["predicted"]["price_sources"],
                    "measured_s": ran["step_time_s"],
                    "error": ran["error"],
                    "losses": [ran["losses"][0], ran["losses"][-1]],
                }
            )
    first = found["runs"][0]  # one micro-batch a rank
    found["alone_s"] = alone(reference, first["micro_batch"])
    return found


def alone(reference: str, batch: int, repeats: int = 15) -> float:
    """CPU time of the forward and backward of *batch* samples on one thread; of several
    the least."""
    import torch

    from profiles.trace import module_of
    from runtime.modules import Samples, TracedStage, cut_of

    torch.set_num_threads(1)
    meta, example = module_of(reference)
    cut = cut_of(meta, example, reference)
    whole, given = module_of(reference, meta=False)
    length = given.seq_len
    samples = Samples(example=given, seq_len=length, seed=0, name=reference)
    stage = TracedStage(cut, [one.name for one in cut.layers], whole, samples)
    numbers = torch.arange(batch)[:, None].expand(batch, 2)
    times = []
    for _ in range(repeats):
        began = time.process_time()
        stage(numbers).backward()
        times.append(time.process_time() - began)
    return min(times)


def _command(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr[-600:]}")
    return json.loads(done.stdout)


def table(found: list[Seen]) -> str:
    """A row a run."""
    columns = (
        *("module", "layout", "predicted", "measured (p10 … p90)", "time", "bytes"),
        *("samples", "passes: priced, CPU time"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    for one in found:
        for number, run in enumerate(one["runs"]):
            passes = ""
            if not number:
                priced, took = run["compute_s"], one["alone_s"]
                passes = f"{1e3 * priced:.0f}, {1e3 * took:.0f} ms"
            layout = " ".join(f"{name} {n}" for name, n in run["layout"].items())
            seconds, off = run["measured_s"], run["error"]
            whole = 1 - run["sources"]["roofline"]
            lines.append(
                f"| {one['module']} | {layout} micro-batch {run['micro_batch']} "
                f"| {1e3 * run['predicted_s']:.0f} ms "
                f"| {1e3 * seconds['median']:.0f} ms ({1e3 * seconds['p10']:.0f} … "
                f"{1e3 * seconds['p90']:.0f}) | {100 * off['step_time']:+.0f} % "
                f"| {100 * off['peak_memory']:+.1f} % | {100 * whole:.0f} % "
                f"| {passes} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODULES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    wish = parser.parse_args()
    found = []
    for name in wish.models.split(","):
        if MODULES[name] == HUGGING_FACE and find_spec("transformers") is None:
            print(f"{name}: pip install transformers", file=sys.stderr)
            continue
        found.append(seen(name))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print(table(found))
    if wish.out is not None:
        wish.out.write_text(json.dumps(found, indent=1) + "\n")
    if wish.page is not None:
        put(wish.page, "module loop", f"\n{table(found)}\n")


if __name__ == "__main__":
    main()
