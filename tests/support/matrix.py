"""The cases of `training_cases` on gloo ranks, each held against one process.

The ranks of a world take all cases of their number one after another; each compares
what it has, so that of copies which several ranks hold all are compared.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.optim.optimizer import Settings
from runtime.train.step_hooks import HEAD, TABLE
from tests.runtime.ranks import on_ranks
from tests.support.apart import (
    Distance,
    Distances,
    distances,
    farthest,
    largest,
    together,
    worst,
)
from tests.support.training import ADAMW, reference, trained
from tests.support.training_cases import Parts, choice_of, parts_known

PARTS = ("gradients", "parameters")
HEAD_COPY = f"{HEAD} of the last stage"  # of a table that is the head too


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A case beside one process: how far away, on the ranks that are farthest."""

    losses: float  # the largest of all steps, nats
    norm: float  # of the first gradient, relative
    gradients: Distances  # of the first step, by tensor
    parameters: Distances  # after the last step
    updates: Distances  # what all steps together changed
    recorded: list[Any]  # the first step's actions, by rank

    def apart(self, part: str) -> float:
        """Relative L2 distance over all parameters together, each counted once."""
        found: Distances = getattr(self, part)
        return together(one for name, one in found.items() if name != HEAD_COPY)

    def worst(self, part: str) -> tuple[float, str]:
        """The largest of a tensor by itself, and its name."""
        return worst(getattr(self, part))


def seen_by_all(
    world: int,
    cases: Sequence[tuple[str, str]],
    settings: Settings = ADAMW,
    steps: int | None = None,
) -> dict[tuple[str, str], Seen]:
    """What the ranks saw of each case, held against one process."""
    wanted = {_wanted(case) for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder, "known.pt")
        alone = {key: reference(key[0], settings, key[1], steps) for key in wanted}
        torch.save(alone, known)
        ranks = on_ranks(world, _every_case, list(cases), settings, steps, str(known))
    return {case: _together([rank["/".join(case)] for rank in ranks]) for case in cases}


def _wanted(case: tuple[str, str]) -> tuple[str, Parts]:
    """Which training by one process a case is held against."""
    return case[0], parts_known(*case)


def _together(ranks: list[dict[str, Any]]) -> Seen:
    names = set(ranks[0]["names"])
    tensors = {
        part: farthest([_read(rank[part]) for rank in ranks])
        for part in (*PARTS, "updates")
    }
    for found in tensors.values():
        assert found.keys() - {HEAD_COPY} == names
    return Seen(
        losses=largest(rank["losses"] for rank in ranks),
        norm=largest(rank["norm"] for rank in ranks),
        recorded=[rank["recorded"] for rank in ranks],
        **tensors,
    )


def _read(document: dict[str, tuple[float, float]]) -> Distances:
    return {name: Distance(*pair) for name, pair in document.items()}


def _every_case(
    rank: int,
    cases: list[tuple[str, str]],
    settings: Settings,
    steps: int | None,
    known: str,
) -> dict[str, Any]:
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    references, found = torch.load(known), {}
    for family, name in cases:
        seen = trained(family, choice_of(family, name), settings, steps=steps)
        found[f"{family}/{name}"] = _compared(seen, references[_wanted((family, name))])
    return found


def _compared(seen: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """What this rank has, against one process: numbers only."""
    wanted = {part: _with_copy(known[part]) for part in (*PARTS, "start")}
    for part in PARTS:
        if HEAD in seen[part] and HEAD not in known["start"]:
            seen[part][HEAD_COPY] = seen[part].pop(HEAD)
    away = {part: distances(seen[part], wanted[part]) for part in PARTS}
    moved = {
        name: one - wanted["start"][name] for name, one in wanted["parameters"].items()
    }
    pairs = zip(seen["losses"], known["losses"], strict=True)
    return {
        "losses": largest(abs(one - two) for one, two in pairs),
        "norm": abs(seen["norm"] / known["norm"] - 1),
        **{
            part: {name: tuple(one) for name, one in away[part].items()}
            for part in PARTS
        },
        "updates": {
            name: (one.away, float((moved[name].double() ** 2).sum()))
            for name, one in away["parameters"].items()
        },
        "recorded": seen["recorded"],
        "names": list(known["start"]),
    }


def _with_copy(tensors: dict[str, Any]) -> dict[str, Any]:
    return tensors | {HEAD_COPY: tensors[TABLE]}
