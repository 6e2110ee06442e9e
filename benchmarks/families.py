"""Models of Hugging Face configurations: the first step of each in several layouts.

python -m benchmarks.families                    every model: three minutes
python -m benchmarks.families --models llama     some of them

Constants are away from the defaults of either side, weights are Hugging Face's, and
what is compared is the loss (nats) and the norm of its gradient (relative).

--page docs/execute.md   put the table between the page's markers
--keep FOLDER            write there what was seen: JSON, and the table
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.pages import measuring, put
from profiles.measure.machine import cores, cpu_name, now
from tests.support.foreign_models import CONFIGS, LAYOUTS, Apart, first_steps

Seen = dict[tuple[str, str], Apart]  # by model and layout


def main() -> None:
    wish = _wish()
    seen: Seen = {}
    for ranks in sorted({one.gpus for one in LAYOUTS.values()}):
        with tempfile.TemporaryDirectory() as folder:
            seen |= first_steps(wish.models, ranks, Path(folder))
        print(f"{ranks} ranks", file=sys.stderr, flush=True)
    text = f"{_head()}\n\n{table(wish.models, seen)}\n"
    print(text)
    if wish.keep is not None:
        _keep(wish.keep, wish.models, seen, text)
    if wish.page is not None:
        put(wish.page, "families", f"\n{text}\n")


def table(models: Sequence[str], seen: Seen) -> str:
    """A row a model, a column a layout: how far apart losses and norms are."""
    rows = [
        ("model", *LAYOUTS),
        ("---", *("---:" for _ in LAYOUTS)),
        *(
            (name, *(_cell(seen[name, layout]) for layout in LAYOUTS))
            for name in models
        ),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(apart: Apart) -> str:
    return f"{apart.loss:.1e}, {apart.norm:.1e}"


def _wish() -> argparse.Namespace:
    parser = measuring(__doc__)
    known = list(CONFIGS)
    parser.add_argument("--models", nargs="+", choices=known, default=known)
    return parser.parse_args()


def _head() -> str:
    """The command, the machine that it ran on, and when."""
    command = shlex.join(["python", "-m", "benchmarks.families", *sys.argv[1:]])
    packages = " ".join(f"{name}-{version(name)}" for name in ("torch", "transformers"))
    return f"`{command}`: {cpu_name()}, {cores()} cores, gloo, {packages}, {now()}"


def _keep(folder: Path, models: Sequence[str], seen: Seen, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        name: {
            "config": CONFIGS[name],
            "apart": {layout: seen[name, layout]._asdict() for layout in LAYOUTS},
        }
        for name in models
    }
    (folder / "families.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "families.md").write_text(text)


if __name__ == "__main__":
    main()
