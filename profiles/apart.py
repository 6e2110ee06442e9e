"""Files that a command writes are apart from each other and from those it reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from profiles.documents import shown
from profiles.errors import Contradiction


def require_apart(
    written: Mapping[str, Path | None], read: Iterable[str | Path | None]
) -> None:
    """Raise Contradiction where what is *written*, by option, would take the place of
    something else that is, or of what is *read*. A link is what it leads to."""
    taken = {_place(path): "" for path in read if path is not None}
    for option, path in written.items():
        if path is None:
            continue
        place = _place(path)
        if place in taken:
            other = taken[place]
            role = f"where {other} writes" if other else "read for this answer"
            raise Contradiction(
                f"{option} {shown(path)} is {role}, and would be written over; name "
                "another file"
            )
        taken[place] = option


def _place(path: str | Path) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # its reader or writer says what is wrong with it
        return str(path)
