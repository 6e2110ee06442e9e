"""Where a run is to write, looked at before any process starts; nothing is made yet."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile

from profiles.documents import shown
from profiles.errors import InvalidFile


def require_folder(folder: Path, option: str) -> None:
    """Raise InvalidFile where *folder*, as *option* names it, is not there and could
    not be made, or takes no files."""
    try:
        nearest = next(one for one in (folder, *folder.parents) if one.exists())
        with TemporaryFile(dir=nearest):
            pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidFile(
            f"the folder {shown(folder)} cannot be made or written: "
            f"{why[:1].lower()}{why[1:]}; name another with {option}"
        ) from error


def require_file(path: Path, option: str) -> None:
    """Raise InvalidFile where no file, as *option* names it, could be written."""
    if not path.exists():
        require_folder(path.parent, option)
    elif path.is_dir() or not os.access(path, os.W_OK):
        what = "is a folder" if path.is_dir() else "cannot be written"
        raise InvalidFile(f"{shown(path)} {what}; name another file with {option}")


def unwritten(path: object, option: str, error: OSError) -> InvalidFile:
    """What to say where a run could not go on writing what *option* names."""
    why = error.strerror or str(error)
    return InvalidFile(
        f"{option} {shown(path)} cannot be written: {why[:1].lower()}{why[1:]}; make "
        f"room, or name another with {option}"
    )
