"""Every layout's checkpoint read by every other: the matrix, on gloo ranks.

    python -m benchmarks.resharding [--keep FOLDER]

Each layout trains two steps and saves; each reads what each saved. A cell says how many
tensors of the state (parameters, both moments, step counts) are the same to the bit,
and how far the loss of the next step, of the same data, is from that of the run that
was not handed on.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.pages import measuring
from profiles.measure.machine import cpu_name, now
from tests.support.resharding import (
    DENSE_JOB,
    LAYOUTS,
    LOSS,
    MIXED,
    MIXED_JOB,
    Handed,
    matrix,
)

Found = dict[tuple[str, str], Handed]


def table(found: Found) -> str:
    """Rows save, columns read."""
    names = list(dict.fromkeys(name for name, _ in found))
    lines = [
        f"| saved by \\ read by | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for name in names:
        cells = [_cell(found[name, other]) for other in names]
        lines.append(f"| **{name}** | {' | '.join(cells)} |")
    worst = max(one.loss for one in found.values())
    held = sum(one.holds for one in found.values())
    said = (
        f"{held} of {len(found)} pairs hold: every tensor the same to the bit, the "
        f"next loss within {LOSS:g} nats (at most {worst:.1e})."
    )
    return "\n".join([*lines, "", said])


def _cell(one: Handed) -> str:
    same = one.tensors - len(one.unlike)
    return f"{same}/{one.tensors}, {one.loss:.0e}"


def main() -> None:
    wish = measuring(__doc__).parse_args()
    command = f"python -m benchmarks.resharding {shlex.join(sys.argv[1:])}"
    parts = [f"`{command}`: {cpu_name()}, torch {torch.__version__}, {now()}"]
    held = True
    for title, asked, layouts in (
        ("A dense model, tied table", DENSE_JOB, LAYOUTS),
        ("Experts", MIXED_JOB, MIXED),
    ):
        with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
            found = matrix(asked, layouts, Path(folder))
        held = held and all(one.holds for one in found.values())
        parts.append(f"## {title}\n\n{table(found)}")
        print(parts[-1], flush=True)
    if wish.keep is not None:
        wish.keep.mkdir(parents=True, exist_ok=True)
        text = "\n\n".join(parts)
        (wish.keep / "resharding.md").write_text(f"# The resharding matrix\n\n{text}\n")
    if not held:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
