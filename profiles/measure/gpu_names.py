"""Which device of the catalogue a GPU is, by the name that PyTorch gives it."""

from __future__ import annotations

import re

from profiles.catalog import device_names
from profiles.measure.machine import slug

_MEMORY = re.compile(r"\d+gb")
_BOARD = re.compile(r"(sxm|pcie)\d*")


def device_name(name: str) -> str:
    """The catalogue's name, or one made of PyTorch's where it has none.

    A name without ``PCIe`` in it is the module's, as vendors leave that out.

    >>> device_name("NVIDIA H100 80GB HBM3"), device_name("NVIDIA A100-SXM4-40GB")
    ('H100-SXM-80GB', 'A100-SXM-40GB')
    >>> device_name("NVIDIA H100 PCIe"), device_name("NVIDIA Thing X1")
    ('H100-PCIe-80GB', 'nvidia-thing-x1')
    """
    words = _words(name)
    alike = [one for one in device_names() if _model(_words(one)) <= words]
    boards = {board for board in map(_board, words) if board} or {"sxm", ""}
    alike = [one for one in alike if _boards(one) & boards or not _boards(one)]
    sizes = {word for word in words if _MEMORY.fullmatch(word)}
    exact = [one for one in alike if sizes & _words(one)]
    found = exact or alike
    return found[0] if len(found) == 1 else slug(name)


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _model(words: set[str]) -> set[str]:
    """What is left of a catalogue name without board and memory: h100; rtx, 4090."""
    return {word for word in words if not (_MEMORY.fullmatch(word) or _board(word))}


def _boards(name: str) -> set[str]:
    return {board for board in map(_board, _words(name)) if board}


def _board(word: str) -> str:
    match = _BOARD.fullmatch(word)
    return match.group(1) if match else ""
