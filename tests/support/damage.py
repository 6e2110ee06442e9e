"""Files as time and strangers leave them: cut, changed, swapped, of something else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Bytes = Callable[[bytes], bytes]

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 2**31, 10**400, 0.5, -1e308, "", "../../x", "\x00", "é"]),
    st.text(max_size=6),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2),
)


class Trap:
    """Pickles to a call that leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside."""
    inside: Any = ()
    if isinstance(document, dict):
        inside = document.items()
    elif isinstance(document, list):
        inside = enumerate(document)
    found = []
    for key, value in inside:
        found += [(*path, key), *places(value, (*path, key))]
    return found


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """*document* with some of its values others, or gone."""
    made = deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        known = places(made)
        if not known:
            break
        *way, last = draw(st.sampled_from(known))
        inside = made
        for key in way:
            inside = inside[key]
        if draw(st.booleans()):
            inside[last] = draw(VALUES)
        elif isinstance(inside, dict):
            del inside[last]
        else:
            inside.append(draw(VALUES))
    return made


@st.composite
def damaged(draw: st.DrawFn, content: bytes, trap: Path) -> bytes:
    """The bytes of a file after something happened to it."""
    kind = draw(st.sampled_from(["cut", "flip", "zeros", "junk", "trap", "more"]))
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    if kind == "cut":
        return content[:place]
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    if kind == "zeros":
        return content[:place] + bytes(len(content) - place)
    if kind == "trap":
        return pickle.dumps(Trap(trap))
    junk = draw(st.binary(max_size=40))
    return content + junk if kind == "more" else junk


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()
