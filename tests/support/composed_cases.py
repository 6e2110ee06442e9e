"""Layouts of three and four mechanisms at once, on 8 and 16 ranks, said in words.

    tp2 sp pp2 dp2 zero1 zb-v full optimizer-away

Degrees, then ZeRO's level over dp and cp (0 unless told), the schedule (1f1b), how
attention exchanges (ring), what is recomputed, and what is kept elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform
from costmodel.schedule.schedules import SCHEDULES, least_chunks

DEGREE = re.compile(r"(tp|pp|dp|cp|ep|etp|micro_batch)(\d+)")
CP_KINDS = ("ring", "all-gather", "ulysses")
RECOMPUTE = ("selective", "full", "cheap-ops", "sqrt")
AWAY = {
    "offloaded": Offload(activations=1.0),
    "optimizer-away": Offload(optimizer=True),
    "states-away": Offload(optimizer=True, parameters=True),
}

COMPOSED = {
    "gpt": (
        "tp2 pp2 dp2",
        "tp2 sp pp2 dp2 zero1",
        "tp2 pp2 dp2 zero2 gpipe selective",
        "tp2 sp pp2 dp2 zero3 full",
        "tp2 pp2 dp2 zero3 interleaved",
        "tp2 sp pp2 dp2 zero1 zb-h1",
        "tp2 pp2 dp2 zb-interleaved cheap-ops",
        "tp2 sp pp2 dp2 zero1 zb-v optimizer-away",
        "tp2 sp pp2 dp2 dualpipe-v micro_batch1",
        "tp2 sp pp2 dp2 chimera",
        "tp2 sp cp2 pp2 zero1 ring",
        "tp2 cp2 pp2 zero2 all-gather interleaved",
        "tp2 sp cp2 pp2 zero3 ulysses full",
        "tp2 cp2 dp2 zero2 ring selective",
        "cp2 pp2 dp2 zero1 ring zb-v",
        "cp2 pp2 dp2 all-gather chimera",
        "cp2 pp2 dp2 ulysses dualpipe-v micro_batch1",
        "pp4 tp2 sp chimera",
        "dp8 zero1 micro_batch1",
        "tp2 sp pp2 dp2 zero1 sqrt offloaded",
        "tp2 sp pp2 dp2 zero3 states-away",
        "tp2 sp cp2 dp2 zero2 all-gather optimizer-away",
        "tp2 sp cp2 pp2 dp2 zero1 ring zb-v",
    ),
    "llama": (
        "tp2 sp pp2 dp2 zero1 zb-v",
        "tp2 sp pp2 dp2 zero3 full",
        "tp2 sp cp2 pp2 zero2 ring interleaved",
        "cp4 dp2 zero3 ulysses",
        "tp2 sp cp2 pp2 dp2 all-gather chimera",
    ),
    "mixtral": (
        "tp2 sp pp2 dp2 ep2",
        "tp2 sp pp2 dp2 ep4 zero2 gpipe full",
        "pp2 dp4 ep4 zero1 interleaved micro_batch1",
        "cp2 pp2 dp2 ep4 zero3 ring",
        "tp2 sp cp2 dp2 ep4 zero1 ulysses",
        "dp8 ep4 zero3 micro_batch1 states-away",
        "tp2 sp pp2 dp2 ep2 zero3 interleaved optimizer-away",
        "tp2 sp cp2 pp2 dp2 ep4 zero2 all-gather",
        "tp2 sp dp4 ep2 etp2 zero2 full",
        "tp2 sp pp2 dp2 ep2 etp2 zero1 zb-h1",
    ),
}


def composed(name: str) -> Uniform:
    """The layout that the words of *name* say, in 32 bits.

    >>> composed("tp2 pp2 dp2 zero1 zb-v").virtual_stages
    2
    """
    numbers: dict[str, Any] = {"micro_batch": 2, "zero": 0}
    said: dict[str, Any] = {}
    for word in name.split():
        if degree := DEGREE.fullmatch(word):
            numbers[degree[1]] = int(degree[2])
        elif word.startswith("zero"):
            numbers["zero"] = int(word[4:])
        else:
            said |= _said(word)
    if numbers["zero"]:
        numbers["zero_group"] = numbers.get("dp", 1)
    return Uniform(precision="fp32", **numbers, **said)


def _said(word: str) -> dict[str, Any]:
    if word == "sp":
        return {"sequence_parallel": True}
    if word in SCHEDULES:
        return {"schedule": word, "virtual_stages": least_chunks(word)}
    if word in CP_KINDS:
        return {"cp_kind": word}
    if word in RECOMPUTE:
        return {"recompute": word}
    return {"offload": AWAY[word]}
