"""What stands for data beside a file's path."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SYNTHETIC: Final = "synthetic"
HUGGING_FACE: Final = "hf:"  # hf:NAME_OR_FOLDER[:SPLIT[:COLUMN]]


def absolute(data: str) -> str:
    """The same data from the folder of a worker."""
    kept = data == SYNTHETIC or data.startswith(HUGGING_FACE)
    return data if kept else str(Path(data).absolute())
