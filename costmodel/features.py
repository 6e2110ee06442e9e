"""Features of a run by which its error is told apart: what it uses, and how large."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.question import Question
from costmodel.retention import PRESETS


def features(asked: Question) -> Mapping[str, str]:
    """The value of each feature, in words.

    What a row leaves out is what its framework does by default.
    """
    choice, on = asked.choice, asked.machine
    kernel = on.software.flash if choice.flash_attention else on.software.unfused
    recompute = choice.recompute if choice.recompute in PRESETS else "operators"
    return {
        "recompute": recompute,
        "attention": kernel,
        "zero": str(choice.zero),
        "tp": _size(choice.tp),
        "pp": _size(choice.pp),
        "cp": _size(choice.cp),
        "precision": choice.precision,
        "nodes": "1" if choice.gpus <= on.cluster.islands[0].domain else "several",
        "gpus": _decade(choice.gpus),
    }


def _size(degree: int) -> str:
    """1, or more.

    >>> _size(1), _size(8)
    ('1', '> 1')
    """
    return "1" if degree == 1 else "> 1"


def _decade(gpus: int) -> str:
    """A span of sizes.

    >>> _decade(8), _decade(64), _decade(4096)
    ('up to 8', '9-128', '> 1024')
    """
    for most, words in ((8, "up to 8"), (128, "9-128"), (1024, "129-1024")):
        if gpus <= most:
            return words
    return "> 1024"
