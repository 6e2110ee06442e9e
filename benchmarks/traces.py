"""Modules of users' own: traced, held against their spec, planned and executed.

python -m benchmarks.traces                      every module: ten minutes on two cores
python -m benchmarks.traces --models unet,vit    some of them
python -m benchmarks.traces --out FILE.json      keep what was seen

Each module has a process of its own, whose peak of resident memory is shown beside its
seconds. What needs transformers is left out where that is not installed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any, Final

OWN, HUGGING_FACE = "tests.support.user_modules", "tests.support.hugging_face_modules"
CONVOLUTIONAL: Final = "tests.support.convolutional"
# Module → (where, sequence, the spec that is the same model, whether it is executed).
MODULES: Final[dict[str, tuple[str, int | None, str | None, bool]]] = {
    "gpt2": (HUGGING_FACE, None, None, True),
    "llama": (HUGGING_FACE, None, None, True),
    "mixtral": (HUGGING_FACE, None, None, True),
    "bert": (HUGGING_FACE, None, None, True),
    "t5": (HUGGING_FACE, None, None, True),
    "vit": (HUGGING_FACE, None, None, True),
    "gpt_125m": (HUGGING_FACE, 2048, "gpt-125m", False),
    "bert_base": (HUGGING_FACE, 512, "bert-base", False),
    "vit_base": (HUGGING_FACE, None, "vit-base", False),
    "llama_1b": (HUGGING_FACE, 512, "llama3.2-1b", False),
    "t5_small": (HUGGING_FACE, 512, "t5-small", False),
    "gpt_175b": (HUGGING_FACE, 2048, None, False),
    "resnet": (OWN, None, None, True),
    "wide_resnet": (OWN, None, None, True),
    "resnet_50": (OWN, None, "resnet-50", False),
    "wide_resnet_50": (OWN, None, "wide-resnet-50-2", False),
    "unet": (OWN, None, None, True),
    "unet_2d": (CONVOLUTIONAL, None, "unet-2d", False),
    "unet_3d": (CONVOLUTIONAL, None, "unet-3d", False),
    "dlrm": (OWN, None, None, True),
    "lstm": (OWN, None, None, True),
    "odd": (OWN, None, None, True),
    "by_hand": (OWN, None, None, True),
}
GPUS: Final = {"gpt_175b": 1024, "llama_1b": 8, "unet_3d": 8}


def seen(name: str) -> dict[str, Any]:
    """One module, in this process."""
    where, seq_len, spec, executed = MODULES[name]
    reference = f"{where}:{name}"
    began = time.perf_counter()
    from profiles import load_model

    model = load_model(reference, seq_len=seq_len)
    found: dict[str, Any] = {
        "module": name,
        "layers": model.job().graph.body,
        "kinds": len(model.job().graph.kinds),
        "tp": list(model.job().graph.splits or ()),
        "traced_s": time.perf_counter() - began,
        "traced_gib": getrusage(RUSAGE_SELF).ru_maxrss / 2**20,
    }
    found["apart"] = None if spec is None else _apart(model, spec, seq_len)
    with tempfile.TemporaryDirectory() as folder:
        layout = Path(folder, "layout.json")
        where_to = ["--cluster", "cpu", "--gpus", "2", "--executable"]
        if name in GPUS:
            where_to = ["--gpus", str(GPUS[name])]
        began = time.perf_counter()
        length = [] if seq_len is None else ["--seq-len", str(seq_len)]
        asked = ["--model", reference, *length, *where_to, "--out", str(layout)]
        if name not in GPUS:
            asked += ["--global-batch", "8"]
        done = _command("planner", *asked, "--json")
        found["planned"] = (
            json.loads(done)["layout"]["summary"] if done is not None else None
        )
        found["planned_s"] = time.perf_counter() - began
        found["executed"] = None
        if executed and done is not None:
            began = time.perf_counter()
            ran = _command(
                *(
                    "runtime",
                    str(layout),
                    "--model",
                    reference,
                    "--steps",
                    "6",
                    "--json",
                )
            )
            found["executed"] = None if ran is None else json.loads(ran)["losses"]
            found["executed_s"] = time.perf_counter() - began
    found["commands_gib"] = getrusage(RUSAGE_CHILDREN).ru_maxrss / 2**20
    return found


def _apart(model: Any, name: str, seq_len: int | None) -> dict[str, float]:
    """FLOPs, parameters and saved bytes of the trace over the spec's, minus 1."""
    from costmodel.simulation import model_flops
    from profiles import load_model
    from profiles.models.param_count import graph_parameters
    from tests.profiles.trace.test_specs import saved_bytes

    job = model.job(global_batch=1)
    spec = load_model(name).job(global_batch=1, seq_len=seq_len)
    counts = [graph_parameters(one.graph).trained for one in (job, spec)]
    return {
        "flops": model_flops(job) / model_flops(spec) - 1,
        "parameters": counts[0] / counts[1] - 1,
        "saved_bytes": saved_bytes(job) / saved_bytes(spec) - 1,
    }


def _command(*words: str) -> str | None:
    """Standard output of one of the commands; None where it failed."""
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr[-400:], file=sys.stderr)
    return done.stdout if done.returncode == 0 else None


def row(one: dict[str, Any]) -> str:
    """A line of the table."""
    apart = one["apart"]
    agrees = "-"
    if apart is not None:
        agrees = "/".join(f"{100 * part:+.1f}" for part in apart.values()) + " %"
    plan = one["planned"]
    words = (
        "failed" if plan is None else f"tp {plan['tp']} pp {plan['pp']} dp {plan['dp']}"
    )
    losses = one["executed"]
    ran = "-"
    if losses:
        ran = f"{losses[0]:.3f} → {losses[-1]:.3f}, {one['executed_s']:.0f} s"
    elif MODULES[one["module"]][3]:
        ran = "failed"
    traced = f"{one['traced_s']:.1f} s {one['traced_gib']:.2f} GiB"
    planned = f"{words}, {one['planned_s']:.0f} s {one['commands_gib']:.2f} GiB"
    shape = f"{one['layers']} ({one['kinds']})"
    return f"| {one['module']} | {shape} | {traced} | {agrees} | {planned} | {ran} |"


HEAD: Final = (
    "| module | layers (kinds) | traced | spec: FLOPs/parameters/saved bytes | planned "
    "| executed |\n|---|---|---|---|---|---|"
)


def main() -> None:
    """All modules, or those that are asked for, a process each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODULES))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(seen(asked.one)))
        return
    print(HEAD, flush=True)
    found = []
    for name in asked.models.split(","):
        if MODULES[name][0] == HUGGING_FACE and find_spec("transformers") is None:
            continue
        done = _command("benchmarks.traces", "--one", name)
        if done is None:
            print(f"| {name} | failed | | | | |", flush=True)
            continue
        found.append(json.loads(done.splitlines()[-1]))
        print(row(found[-1]), flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
