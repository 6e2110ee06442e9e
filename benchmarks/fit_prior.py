"""Fit `data/prior.json`: how far a user's coefficients lie from the published ones.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.fit_runs --keep fit.npz
    MESHWRIGHT_DATA=<folder> python -m benchmarks.fit_prior fit.npz [--write]

A few runs of each published family are given and the rest foretold, by fits that saw
neither the family nor, the second time, its source. What is least is the mean over
families of their mean error, over what it is where none is given (so that no family is
helped at the cost of another), how much that is above one on average over those that
are worse, and how far the share inside p10 to p90 is from 80 %.
Each number is tried up and down by a third, in turn.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.fit.held_out import HeldOut
from benchmarks.fit_runs import kept
from benchmarks.run_times import timed_runs
from costmodel.runs.prior import PRIOR, Prior, load_prior

GIVEN = (0, 1, 3, 5)
FACTOR = 1.33
ROUNDS = 3
LEVEL = 0.8  # p10 to p90
SMALL = 0.01  # errors below it are no worse than it
LEAST = 0.01  # of a pace: below it nothing is told apart


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fit", type=Path)
    parser.add_argument("--write", action="store_true")
    wish = parser.parse_args(arguments)
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
        return 2
    runs = timed_runs(Path(folder) / "runs.csv")
    fit = kept(wish.fit, runs)
    tables = [HeldOut(runs=runs, fit=fit, column=name) for name in ("family", "source")]
    best, least = load_prior(), loss(load_prior(), tables)
    for number in range(ROUNDS):
        before = least
        for change in CHANGES:
            trial = change(best)
            found = loss(trial, tables)
            if found < least:
                best, least = trial, found
        print(f"round {number}: {least:.4f} {words(best)}", flush=True)
        if least == before:
            break
    if wish.write:
        text = msgspec.json.format(msgspec.json.encode(best), indent=1)
        PRIOR.write_bytes(text + b"\n")
    return 0


def drifting(best: Prior, factor: float) -> Prior:
    return replace(best, drift=round(best.drift * factor, 3))


def scattering(best: Prior, factor: float) -> Prior:
    return replace(best, noise=round(best.noise * factor, 4))


def pacing(best: Prior, factor: float, name: str) -> Prior:
    size = max(round(best.paces[name] * factor, 4), LEAST)
    return replace(best, paces={**best.paces, name: size})


CHANGES: Final[Sequence[Callable[[Prior], Prior]]] = [
    partial(change, factor=factor)
    for factor in (FACTOR, 1 / FACTOR)
    for change in (
        drifting,
        scattering,
        *(
            partial(pacing, name=name)
            for name in ("framework", "device", "precision", "model")
        ),
    )
]


def loss(prior: Prior, tables: Sequence[HeldOut]) -> float:
    """Errors with some runs given over those with none, and the share inside."""
    ratios, inside, none = [], [], np.inf
    for table in tables:
        for one in table.foretold(prior, GIVEN, repeats=1):
            error = max(float(one.errors.mean()), SMALL)
            if one.given == 0:
                none = error
                continue
            ratios.append(error / none)
            inside.append(float(one.inside.mean()))
    worse = float(np.mean(np.maximum(np.array(ratios) - 1, 0)))
    return float(np.mean(ratios)) + worse + abs(float(np.mean(inside)) - LEVEL)


def words(prior: Prior) -> str:
    paces = " ".join(f"{name} {size:g}" for name, size in prior.paces.items())
    return f"drift {prior.drift:g} noise {prior.noise:g} {paces}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
