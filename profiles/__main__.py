"""`python -m profiles` and the console script `profile`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run the command on *argv*; returns its exit code."""
    # `python -m` puts the working folder first, where `costmodel/` may be the user's.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from profiles.commandline import enter

    return enter("profiles.cli:profile", argv, prog)


if __name__ == "__main__":
    sys.exit(main())
