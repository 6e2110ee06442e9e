"""`python -m costmodel` and the console script `simulate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run the command on *argv*; returns its exit code."""
    # `python -m` puts the working folder first, where `profiles/` may be the user's.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from profiles.commandline import enter
    from profiles.system import fewer_collections, keep_heap
    from profiles.units import MiB

    keep_heap(512 * MiB)
    with fewer_collections():
        return enter("costmodel.cli:simulate", argv, prog)


if __name__ == "__main__":
    sys.exit(main())
