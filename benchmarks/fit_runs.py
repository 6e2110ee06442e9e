"""Fit `data/coefficients.json` to published step times, and leave families out.

`--write` also writes their covariance (`data/covariance.json`), from which
`simulate --calibrate` starts.

    MESHWRIGHT_DATA=<folder> python -m benchmarks.fit_runs [--write] [--rounds 4]

Robust Gauss-Newton on log(predicted / measured) with log-normal priors: what few runs
tell stays near its prior. A source of n runs weighs as n^0.7 (its runs share what they
miss), and less if the model explains it badly: what moves such runs is something else
than coefficients. Leaving a family (or a source) out is one more Gauss-Newton step from
the fit, without its rows; those rows are then priced by what came out.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.run_times import Timed, asked_by, by, seconds, timed_runs
from costmodel.machine.coefficients import (
    PATH,
    Coefficient,
    Coefficients,
    load_coefficients,
)
from costmodel.runs.calibrate import disjoint
from costmodel.runs.comparison import PATH as LEFT_OUT
from costmodel.runs.prior import COVARIANCE, Covariance

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SHARED = 0.3  # a run weighs n^-0.3 among the n of its source
ROUNDED = 0.6  # weight of a time that was inverted from a rounded TFLOP/s figure
STEP = 0.03  # of a logarithm, for differences
NOISE = 0.02  # beyond which a run's miss counts as much as it is far, not its square
SCATTER = 0.05  # a source whose runs miss by more than this weighs less
FEW = 4  # runs of just that scatter that each source is taken to have beside its own
SMALL = 0.08  # a step after which slopes are as they were
DEVIATION = 1.25  # a normal distribution's standard deviation over its mean miss
FARTHEST = 0.5  # a round changes no coefficient by more, in its logarithm
_runs: Sequence[Timed] = ()


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Coefficients, and how each run's log time hangs on the logarithm of each."""

    fitted: Coefficients
    misses: Floats  # log(predicted / measured)
    jacobian: Floats
    weights: Floats  # of rows, before robustness

    def solved(self, without: Sequence[int] = ()) -> tuple[Floats, Floats]:
        """(change of each logarithm, covariance) of one step without some rows."""
        weight = self.weights * _robust(self.misses / NOISE) / NOISE**2
        weight[list(without)] = 0.0
        entries = self.fitted.entries
        pull = np.array([1 / item.spread**2 for item in entries])
        away = np.array([np.log(item.value / item.prior) for item in entries])
        normal = (self.jacobian.T * weight) @ self.jacobian + np.diag(pull)
        right = -(self.jacobian.T * weight) @ self.misses - pull * away
        covariance = np.asarray(np.linalg.inv(normal), dtype=np.float64)
        step: Floats = np.clip(covariance @ right, -FARTHEST, FARTHEST)
        return step, covariance

    def without(self, rows: Sequence[int]) -> Coefficients:
        """The coefficients that are fitted when *rows* are not there."""
        step, _ = self.solved(rows)
        return moved(self.fitted, step)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--no-left-out", action="store_true")
    parser.add_argument("--most-of-a-family", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="of benchmarks.learning_curves")
    wish = parser.parse_args(arguments)
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        print("set MESHWRIGHT_DATA to the folder of measurements", file=sys.stderr)
        return 2
    runs = timed_runs(Path(folder) / "runs.csv")
    if wish.most_of_a_family:
        runs = thinned(runs, wish.most_of_a_family)
    global _runs
    _runs = runs
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        fit = fitted(runs, load_coefficients(), pool, rounds=wish.rounds)
        print_errors("fit", runs, fit.misses)
        result = with_errors(fit, runs)
        print_parameters(result)
        if wish.keep:
            keep(fit, runs, wish.keep)
        if not wish.no_left_out:
            left = {
                name: left_out(fit, runs, name, pool) for name in ("family", "source")
            }
            for name, misses in left.items():
                print_errors(f"without their {name}", runs, misses, short=True)
            if wish.write:
                write_left_out(runs, fit.misses, left)
    if wish.write:
        lines = (msgspec.json.encode(item).decode() for item in result.entries)
        PATH.write_text("[\n" + ",\n".join(lines) + "\n]\n")
        known = Covariance.of(result, fit.solved()[1])
        COVARIANCE.write_bytes(msgspec.json.encode(known) + b"\n")
    return 0


def keep(fit: Fit, runs: Sequence[Timed], path: Path) -> None:
    """The fit of each run by its key, for experiments that leave runs out."""
    np.savez(
        path,
        keys=[item.run.key for item in runs],
        names=[item.name for item in fit.fitted.entries],
        values=[item.value for item in fit.fitted.entries],
        misses=fit.misses,
        jacobian=fit.jacobian,
        weights=fit.weights,
    )


def kept(path: Path, runs: Sequence[Timed]) -> Fit:
    """What `keep` wrote, of the same *runs* in their order."""
    with np.load(path) as file:
        table = dict(file)
    place = {key: row for row, key in enumerate(table["keys"].tolist())}
    rows = [place[item.run.key] for item in runs]
    values = dict(zip(table["names"].tolist(), table["values"].tolist(), strict=True))
    return Fit(
        fitted=load_coefficients().changed(values),
        misses=table["misses"][rows],
        jacobian=table["jacobian"][rows],
        weights=table["weights"][rows],
    )


def fitted(
    runs: Sequence[Timed], start: Coefficients, pool: ProcessPoolExecutor, rounds: int
) -> Fit:
    """Gauss-Newton from *start*; a last Jacobian stands at the answer, or near it."""
    measured = np.log([item.measured_s for item in runs])

    def at(values: Coefficients, slopes: Floats) -> Fit:
        misses = np.nan_to_num(timed(values, pool) - measured)
        return Fit(fitted=values, misses=misses, jacobian=slopes, weights=weights)

    weights = np.empty(0)
    fit = at(start, np.empty((0, 0)))
    for number in range(rounds + 1):
        began = time.perf_counter()
        weights = row_weights(runs, fit.misses)
        fit = replace(fit, weights=weights)
        moves = fit.jacobian != 0 if number else asked(runs, fit.fitted)
        slopes = jacobian(moves, fit.fitted, fit.misses + measured, pool)
        fit = replace(fit, jacobian=slopes)
        print(
            f"round {number}: mean {np.abs(np.expm1(fit.misses)).mean():.4f} median "
            f"{np.median(np.abs(np.expm1(fit.misses))):.4f} loss {loss(fit):.1f} "
            f"({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
        if number == rounds:
            break
        step, _ = fit.solved()
        for share in (1.0, 0.5, 0.25):  # the whole step, unless that is no better
            trial = at(moved(fit.fitted, share * step), slopes)
            if loss(trial) < loss(fit):
                fit = trial
                break
        if np.abs(step).max() < SMALL:
            break
    return fit


def thinned(runs: Sequence[Timed], most: int) -> list[Timed]:
    """At most so many runs of each family, evenly taken: for a quick look."""
    kept: list[int] = []
    for rows in by(runs, "family").values():
        kept += rows[:: -(-len(rows) // most)]
    return [runs[row] for row in sorted(kept)]


def loss(fit: Fit) -> float:
    scaled = fit.misses / NOISE
    data = (fit.weights * 2 * (np.sqrt(1 + scaled**2) - 1)).sum()
    prior = sum(
        (np.log(item.value / item.prior) / item.spread) ** 2
        for item in fit.fitted.entries
    )
    return float(data + prior)


def row_weights(runs: Sequence[Timed], misses: Floats) -> Floats:
    """A source of n runs weighs n^0.7: they share what they miss; less if rounded, and
    by the inverse variance of its *misses* if they scatter more than most."""
    found = np.zeros(len(runs))
    for rows in by(runs, "source").values():
        own = (DEVIATION * np.abs(misses[rows]).mean()) ** 2
        variance = (len(rows) * own + FEW * SCATTER**2) / (len(rows) + FEW)
        found[rows] = len(rows) ** -SHARED * min(SCATTER**2 / variance, 1.0)
    return found * np.where([item.rounded for item in runs], ROUNDED, 1.0)


def timed(
    values: Coefficients, pool: ProcessPoolExecutor, rows: list[int] | None = None
) -> Floats:
    """Log seconds of runs."""
    wanted = np.arange(len(_runs)) if rows is None else np.array(rows)
    halves = np.array_split(wanted, 2)
    jobs = [pool.submit(_seconds, values, part.tolist()) for part in halves]
    logs: Floats = np.log(np.concatenate([job.result() for job in jobs]))
    return logs


def _seconds(values: Coefficients, rows: list[int]) -> Floats:
    return seconds([_runs[row] for row in rows], [values] * len(rows))


def asked(runs: Sequence[Timed], values: Coefficients) -> Bools:
    """Which coefficients the machine of each run is made of."""
    known = asked_by(runs, values)
    return np.array([[item.name in own for item in values.entries] for own in known])


def jacobian(
    moves: Bools, values: Coefficients, logs: Floats, pool: ProcessPoolExecutor
) -> Floats:
    """By differences, where a run *moves*; coefficients that no run shares are moved at
    once."""
    names = [item.name for item in values.entries]
    rows = {
        name: np.flatnonzero(moves[:, column]).tolist()
        for column, name in enumerate(names)
    }
    found = np.zeros(moves.shape)
    for group in disjoint(rows):
        step = np.array([STEP if name in group else 0.0 for name in names])
        concerned = sorted({row for name in group for row in rows[name]})
        there = timed(moved(values, step), pool, concerned)
        change = dict(zip(concerned, there - logs[concerned], strict=True))
        for name in group:
            column = names.index(name)
            for row in rows[name]:
                found[row, column] = change[row] / STEP
    return np.nan_to_num(found)


def moved(values: Coefficients, step: Floats) -> Coefficients:
    """*values* with their logarithms changed by *step*."""
    return values.changed(
        {
            item.name: float(item.value * np.exp(change))
            for item, change in zip(values.entries, step, strict=True)
        }
    )


def with_errors(fit: Fit, runs: Sequence[Timed]) -> Coefficients:
    """The fitted coefficients with standard errors and the rows they move."""
    _, covariance = fit.solved()
    entries: list[Coefficient] = []
    for number, item in enumerate(fit.fitted.entries):
        touched = int((np.abs(fit.jacobian[:, number]) > 0.005).sum())
        entries.append(
            replace(
                item,
                value=float(f"{item.value:.4g}"),
                error=float(f"{np.sqrt(covariance[number, number]):.2g}"),
                rows=touched,
            )
        )
    return Coefficients(entries=tuple(entries))


def left_out(
    fit: Fit, runs: Sequence[Timed], column: str, pool: ProcessPoolExecutor
) -> Floats:
    """Misses of each run when nothing of its *column* was fitted."""
    found = np.zeros(len(runs))
    jobs = {
        part: pool.submit(_seconds, fit.without(rows), rows)
        for part, rows in by(runs, column).items()
    }
    measured = np.log([item.measured_s for item in runs])
    for part, rows in by(runs, column).items():
        found[rows] = np.log(jobs[part].result()) - measured[rows]
    return np.nan_to_num(found)


def print_errors(
    title: str, runs: Sequence[Timed], misses: Floats, *, short: bool = False
) -> None:
    misses = np.where([item.rounded for item in runs], np.nan, misses)
    counted = [row for row, item in enumerate(runs) if not item.rounded]
    runs, misses = [runs[row] for row in counted], misses[counted]
    sizes = np.abs(np.expm1(misses))
    sources = by(runs, "source")
    over = fmean(
        sizes[rows].mean() for name, rows in sources.items() if "V100 J" not in name
    )
    print(
        f"{title}: mean {sizes.mean():.4f} median {np.median(sizes):.4f} "
        f"over sources {over:.4f} bias {np.expm1(misses).mean():+.4f}"
    )
    for name, rows in sources.items():
        print(
            f"   {name[:36]:36} {len(rows):4} mean {sizes[rows].mean():.3f} "
            f"median {median(sizes[rows]):.3f} "
            f"bias {np.expm1(misses[rows]).mean():+.3f}"
        )
        if short:
            continue
        parts = by([runs[row] for row in rows], "device")
        if len(parts) > 1:
            for part, inner in parts.items():
                here = [rows[place] for place in inner]
                print(
                    f"       {part[:20]:20} {len(here):4} {sizes[here].mean():.3f} "
                    f"{np.expm1(misses[here]).mean():+.3f}"
                )


def print_parameters(values: Coefficients) -> None:
    for item in values.entries:
        print(
            f"{item.name:34} {item.value:8.4g} ± {item.error:.3f}  prior "
            f"{item.prior:g} ({item.spread:g}) rows {item.rows}"
        )


def write_left_out(runs: Sequence[Timed], fit: Floats, left: dict[str, Floats]) -> None:
    """Run, and predicted / measured when fitted, without its family, its source."""
    with LEFT_OUT.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["run", "fit", *(f"without_{name}" for name in left)])
        for number, item in enumerate(runs):
            if item.rounded:
                continue
            ratios = [fit[number], *(misses[number] for misses in left.values())]
            table.writerow([item.run.key, *(f"{np.exp(one):.5f}" for one in ratios)])


def _robust(scaled: Floats) -> Floats:
    """Weights of the soft L1 loss."""
    return 1 / np.sqrt(1 + scaled**2)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
