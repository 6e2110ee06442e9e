"""Another number of machines: the layout for it, chosen by `plan`.

It is the same job at the same global batch, on fewer or more devices of the same
cluster. Every machine asks for itself, in a process that ends, and gets the same
answer; workers compare what they got before they train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from costmodel.simulation import LayoutFile, read_layout_file
from profiles.commandline import given
from profiles.errors import RunFailed
from profiles.files import write_text
from runtime.launch.launcher import packages

TIME_LIMIT_S: Final = 20  # of the search; it is over long before on most questions
PATIENCE_S: Final = 3 * TIME_LIMIT_S  # of the process
DEGREES: Final = ("tp", "pp", "dp", "cp", "ep")


@dataclass(slots=True)
class Layouts:
    """The layout of a run for each number of ranks, *file*'s own among them."""

    file: LayoutFile
    known: dict[int, LayoutFile] = field(default_factory=dict)

    def of(self, gpus: int) -> LayoutFile:
        """The one for so many ranks; raises RunFailed where none fits."""
        if gpus == self.file.gpus:
            return self.file
        if gpus not in self.known:
            self.known[gpus] = planned(self.file, gpus)
        return self.known[gpus]


def planned(file: LayoutFile, gpus: int) -> LayoutFile:
    """What `plan` recommends for *file*'s job on *gpus* devices of its cluster.

    Raises RunFailed, with its reason, where it recommends nothing.
    """
    with TemporaryDirectory(prefix="meshwright-") as folder:
        out = Path(folder, "layout.json")
        arguments = [*question(file, gpus, Path(folder)), "--out", str(out)]
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "planner", *arguments],
                env={**os.environ, "PYTHONPATH": packages()},
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunFailed(
                f"no layout for {gpus} ranks was found within {PATIENCE_S} s"
            ) from None
        if done.returncode or not out.exists():
            said = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
            raise RunFailed(f"no layout of this job for {gpus} ranks: {said}")
        return read_layout_file(out)


def question(file: LayoutFile, gpus: int, folder: Path) -> list[str]:
    """The arguments of `plan`; what is spelled out in *file* goes into *folder*."""
    options: dict[str, Any] = {
        "model": _named(file.job["model"], folder / "model.json"),
        "cluster": _named(file.cluster, folder / "cluster.json"),
        "gpus": gpus,
        **{key: file.job[key] for key in ("seq_len", "global_batch", "optimizer")},
        "precision": file.layout.precision_name,
        **_priced(file),
        "time_limit": TIME_LIMIT_S,
    }
    flags = [
        word
        for name, value in options.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    for samples in file.origin.profile_files:
        flags += ["--profile", samples]
    return [*flags, "--executable", "--top", "0"]


def _priced(file: LayoutFile) -> dict[str, Any]:
    """What was asked of the price, for software that is not named: ours executes."""
    asked = given(file.origin.options)
    return {key: asked[key] for key in asked if key not in ("framework", "bucket_mb")}


def _named(value: Any, place: Path) -> str:
    if isinstance(value, str):
        return value
    write_text(place, json.dumps(value))
    return str(place)


def degrees(file: LayoutFile) -> str:
    """The degrees of a layout that are not 1, in a few words."""
    summary = file.layout.summary
    found = [f"{name} {summary[name]}" for name in DEGREES if summary[name] != 1]
    return " · ".join(found) or "1 rank"
