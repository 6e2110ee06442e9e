"""Each layout against one process in plain PyTorch: losses, gradients, parameters.

python benchmarks/numerics.py [--page docs/execute.md]
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.training import WHOLE, apart, reference, seen_by_all  # noqa: E402
from tests.training_cases import cases_of, choice_of, parts_of  # noqa: E402

MARKED = re.compile(
    r"(?<=<!-- numerics -->\n).*?(?=<!-- end of the numerics -->)", re.S
)


def table() -> str:
    """One row a layout, as Markdown."""
    lines = [
        "| model | layout | losses apart | first gradients | last parameters |",
        "|---|---|---:|---:|---:|",
    ]
    for world in (1, 2, 4):
        for (family, name), seen in seen_by_all(world, cases_of(world)).items():
            parts = parts_of(choice_of(family, name)) if family == "switch" else WHOLE
            wanted = known(family, parts)
            pairs = zip(seen["losses"], wanted["losses"], strict=True)
            lines.append(
                f"| {family} | {name} | {max(abs(a - b) for a, b in pairs):.1e} | "
                f"{apart(seen['gradients'], wanted['gradients']):.1e} | "
                f"{apart(seen['parameters'], wanted['parameters']):.1e} |"
            )
    return "\n".join(lines)


@lru_cache
def known(family: str, parts: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """The reference of a family, trained once."""
    return reference(family, parts)


def main() -> None:
    text = f"\n{table()}\n\n"
    print(text)
    if "--page" in sys.argv:
        page = Path(sys.argv[sys.argv.index("--page") + 1])
        page.write_text(MARKED.sub(lambda _: text, page.read_text()))


if __name__ == "__main__":
    main()
