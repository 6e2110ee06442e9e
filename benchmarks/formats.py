"""Layouts in the files of other frameworks: written, read back, priced, improved.

    python -m benchmarks.formats [FILE]

Three tables: the present configurations of docs/examples, priced and improved; one
layout exported to every target and read back; the choice of Hugging Face's ladder
beside the plan, and what differs. Printed, and written to FILE where one is named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from costmodel.__main__ import main as simulate
from planner.__main__ import main as plan
from profiles.units import format_bytes, format_seconds

EXAMPLES: Final = Path(__file__).resolve().parents[1] / "docs" / "examples"
PRESENT: Final = (
    ("megatron_gpt3_175b.sh",),
    ("deepspeed_zero3.json", *["--model", "llama2-13b", "--gpus", "16"]),
    ("torchtitan_llama3_70b.toml", *["--cluster", "dgx-h100", "--gpus", "256"]),
)
# A layout for the targets that take it, and with which options its file is read back.
LAYOUTS: Final = (
    (
        (
            "--model llama3-8b --gpus 16 --tp 2 --pp 2 --micro-batch 1 "
            "--recompute full --global-batch 256 --framework megatron-core"
        ),
        ("megatron", "megatron-deepspeed", "torchtitan", "nemo", "slurm:megatron"),
        "--gpus 16",
    ),
    (
        (
            "--model gpt-1.3b --gpus 16 --zero 3 --micro-batch 4 --recompute full "
            "--global-batch 256 --framework fsdp2"
        ),
        ("deepspeed", "accelerate", "trainer", "kubernetes:trainer"),
        "--model gpt-1.3b --gpus 16 --seq-len 2048",
    ),
    (
        "--model gpt-1.3b --gpus 16 --tp 2 --pp 2 --micro-batch 4 --global-batch 256",
        ("colossalai", "torchrun", "slurm", "kubernetes"),
        "--model gpt-1.3b --gpus 16 --seq-len 2048 --global-batch 256",
    ),
)
READ: Final = {
    "megatron": "megatron.sh",
    "megatron-deepspeed": "megatron_deepspeed.sh",
    "torchtitan": "torchtitan.toml",
    "deepspeed": "ds_config.json",
    "accelerate": "accelerate.yaml",
    "trainer": "training_arguments.json",
    "nemo": "nemo_recipe.py",
    "colossalai": "colossalai_plugin.py",
    "torchrun": "torchrun.sh",
    "slurm": "slurm.sbatch",
    "slurm:megatron": "slurm.sbatch",
    "kubernetes": "trainjob.yaml",
}
SIZES: Final = "--micro-batch 4 --global-batch 256"  # that accelerate's file leaves out
LADDERS: Final = (
    "--model gpt-1.3b --gpus 8 --global-batch 256",
    "--model gpt-6.7b --gpus 16 --global-batch 256",
    "--model llama2-7b --cluster dgx-a100-40gb --gpus 16 --global-batch 512",
    "--model llama2-13b --cluster dgx-h100 --gpus 32 --global-batch 512",
)


def asked(command: Any, *argv: str) -> dict[str, Any] | str:
    """The document of a command, or why there is none."""
    out, wrong = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(wrong):
        code = command([*argv, "--json"])
    if code:
        return wrong.getvalue().strip().splitlines()[-1]
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def costs(estimate: Mapping[str, Any]) -> str:
    peak = format_bytes(estimate["peak_memory_bytes"])
    fits = "" if estimate["fits"] else " (does not fit)"
    step = format_seconds(estimate["step_time_s"])
    return f"{step}, MFU {estimate['mfu']:.1%}, {peak}{fits}"


def degrees(layout: Mapping[str, Any]) -> str:
    """The dozen numbers, where they are not 1."""
    told = [
        f"{name} {size}"
        for name, size in layout["summary"].items()
        if size not in (1, None) and name not in ("zero_group", "zero_ranks", "zero")
    ]
    virtual = layout["virtual_stages"]
    schedule = layout["schedule"] + (f" x {virtual}" if virtual > 1 else "")
    pipeline = [schedule] if layout["summary"]["pp"] > 1 else []
    return " · ".join([*told, *pipeline, f"ZeRO-{layout['summary']['zero']}"])


def changes(found: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Each change, and by how much of the step *before* it is slower."""
    for change in found["changes"]:
        share = change["step_time_s"] / before["step_time_s"]
        names = ", ".join(change["dimensions"])
        yield f"  {share:+7.1%}  {names}: {change['from']} -> {change['to']}"


def improvements() -> Iterator[str]:
    yield "Present configurations, priced and improved (plan --from FILE)"
    for file, *more in PRESENT:
        began = perf_counter()
        found = asked(plan, "--from", str(EXAMPLES / file), *more)
        seconds = perf_counter() - began
        yield ""
        yield f"{file} {' '.join(more)}".strip()
        if isinstance(found, str):
            yield f"  {found}"
            continue
        now, speedup = found["from"], found["improvement"]["speedup"]
        trained = found["job"]["model"]
        trained = trained if isinstance(trained, str) else "its own model"
        where = f"{found['gpus']} GPUs of {found['cluster']}, {now['framework']}"
        yield f"  {trained} on {where}"
        yield f"  present   {degrees(now['layout'])}: {costs(now['estimate'])}"
        yield f"  plan      {degrees(found['layout'])}: {costs(found['estimate'])}"
        gap = found["bound"]["gap"]
        yield f"  {speedup:.2f} times as fast; gap {gap:.1%}; {seconds:.1f} s"
        yield from changes(found["improvement"], now["estimate"])


def round_trips() -> Iterator[str]:
    yield "One layout exported to every target, and read back (simulate --from)"
    for question, targets, beside in LAYOUTS:
        yield ""
        yield question
        for target in targets:
            with TemporaryDirectory() as folder:
                yield f"  {target:19} {_round(question, target, beside, folder)}"


def _round(question: str, target: str, beside: str, folder: str) -> str:
    """What became of one layout in one target's files."""
    into = ("--export", target, "--export-to", folder)
    found = asked(simulate, *question.split(), *into)
    if isinstance(found, str):
        return found
    files = ", ".join(found["exports"][target])
    if target not in READ:
        return f"{files}; written alone"
    sizes = SIZES.split() if target == "accelerate" else []
    file = str(Path(folder) / READ[target])
    again = asked(simulate, "--from", file, *_known(file, beside), *sizes)
    if isinstance(again, str):
        return f"{files}; {again}"
    same = again["layout"] == found["layout"]
    return f"{files}; read back {'the same' if same else 'ANOTHER layout'}"


def _known(file: str, beside: str) -> list[str]:
    """Options that say what the file does not: Megatron's and launchers' say all."""
    whole = (".sh", ".sbatch", "trainjob.yaml")
    return [] if file.endswith(whole) else beside.split()


def ladders() -> Iterator[str]:
    yield "Hugging Face's ladder, exported to accelerate, beside the plan (fsdp2)"
    for question in LADDERS:
        with TemporaryDirectory() as folder:
            yield ""
            yield question
            yield from _ladder(question.split(), Path(folder))


def _ladder(question: Sequence[str], folder: Path) -> Iterator[str]:
    ours = ("--framework", "fsdp2")
    kept = str(folder / "ladder.json")
    found = asked(
        plan,
        *question,
        *ours,
        *("--search", "hf-ladder", "--out", kept),
        *("--export", "accelerate", "--export-to", str(folder)),
    )
    if isinstance(found, str):
        yield f"  {found}"
        return
    better = asked(plan, "--from", kept)
    if isinstance(better, str):
        yield f"  {better}"
        return
    kind = next(
        line.split(": ")[1]
        for line in found["exports"]["accelerate"]["accelerate.yaml"].splitlines()
        if line.startswith("distributed_type")
    )
    yield f"  ladder  {degrees(found['layout'])} ({kind}): {costs(found['estimate'])}"
    yield f"  plan    {degrees(better['layout'])}: {costs(better['estimate'])}"
    yield from changes(better["improvement"], found["estimate"])


def main(argv: Sequence[str]) -> int:
    lines: list[str] = []
    for part in (improvements, round_trips, ladders):
        for line in part():
            print(line, flush=True)
            lines.append(line)
        lines.append("")
        print()
    if argv:
        Path(argv[0]).write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
