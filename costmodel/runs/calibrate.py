"""What a handful of measured runs say of the coefficients: a `Calibration`.

    runs      priced, and priced again with each coefficient moved     → slopes
    update    the published fit is the prior (`prior`, `bayes`)        → step
    again     from where that led, as prices are not quite linear      → step
    memory    the same of what is kept and of what is beside tensors   → peaks

Coefficients that no run shares are moved at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.machine import (
    BESIDE,
    KEPT,
    PACE,
    Calibration,
    LeftOutRun,
    Machine,
    Parameter,
    Profile,
    SeenRun,
    degrees_of_summary,
    load_coefficients,
    step_names,
)
from costmodel.runs.bayes import Posterior, updated
from costmodel.runs.prior import load_prior
from costmodel.runs.seen_runs import Seen, SeenRuns, read_seen
from costmodel.simulation import Answer, answers
from profiles.errors import InvalidFile, MeshwrightError
from profiles.units import GiB

Floats = NDArray[np.float64]
STEP: Final = 0.03  # of a logarithm, for differences
TELLS: Final = 0.005  # a slope below it does not count as hanging on a parameter
FARTHEST: Final = 1.0  # no logarithm moves by more
ROUNDS: Final = 2
MOST_PRICED: Final = 100  # runs whose slopes are their own
SAMPLED: Final = 24  # runs that show which coefficients matter at all
MATTERS: Final = 0.002  # of a step, by a standard deviation of the prior


def calibrate(
    runs: Path | str | Sequence[Path | str], *, profile: Profile | None = None
) -> Calibration:
    """What the runs in one or several files say of the coefficients.

    Tables of runs with measured columns, documents that `execute --json` printed, or
    profiles that `execute --observe` added runs to; *profile* has the samples of the
    cluster `local`. Give the result to `simulate` or `plan` as `calibration`.

    Raises InvalidFile for other files, and where no row tells anything.
    """
    paths = [runs] if isinstance(runs, Path | str) else runs
    return calibrated_by(read_seen([Path(path) for path in paths], profile))


def calibrated_by(seen: SeenRuns) -> Calibration:
    """The calibration by *seen*; raises InvalidFile where no run can be used."""
    found, left_out = _priced(seen.runs)
    left_out = [*seen.left_out, *left_out]
    step = _step([one for one in found if one[0].step_time_s is not None])
    absurd = {one.row for one in step.unlikely} if step is not None else set()
    likely = [one for one in found if one[0].row not in absurd]
    peaks, narrower, unlikely = _peaks([one for one in likely if one[0].peak_bytes])
    calibration = Calibration(
        coefficients=load_coefficients().digest,
        memory=peaks,
        memory_narrower=narrower,
        left_out=(*left_out, *unlikely),
    )
    if step is not None:
        calibration = step.told(calibration)
    if not calibration.runs and not calibration.memory:
        first = calibration.left_out[0]
        raise InvalidFile(f"no run can be used to calibrate: {first.row}: {first.why}")
    return calibration


def _priced(runs: Sequence[Seen]) -> tuple[list[tuple[Seen, Answer]], list[LeftOutRun]]:
    found, left_out = [], []
    for run, answer in zip(runs, _answers(runs), strict=True):
        if isinstance(answer, MeshwrightError):
            left_out.append(LeftOutRun(row=run.row, why=str(answer)))
        else:
            found.append((run, answer))
    return found, left_out


def _answers(
    runs: Sequence[Seen], on: Callable[[Machine], Machine] | None = None
) -> list[Answer | MeshwrightError]:
    """The price of each run, equal ones priced once, each machine put in place."""
    machines: dict[int, Machine] = {}
    asked: dict[tuple[int, int], tuple[Any, Any, Machine]] = {}
    keys = []
    for run in runs:
        own = run.machine
        if id(own) not in machines:
            machines[id(own)] = own if on is None else on(own)
        keys.append((id(own), id(run.layout)))
        asked[keys[-1]] = (run.job, run.layout, machines[id(own)])
    found = dict(zip(asked, answers(asked.values()), strict=True))
    return [found[key] for key in keys]


def _seconds(runs: Sequence[Seen], changes: Mapping[str, float]) -> Floats:
    """Seconds of a step with logarithms of coefficients changed by so much."""

    def moved(on: Machine) -> Machine:
        values = on.fitted.values
        return on.fitted_as(
            on.fitted.changed(
                {name: values[name] * exp(change) for name, change in changes.items()}
            )
        )

    found = _answers(runs, moved if changes else None)
    return np.array(
        [np.nan if isinstance(one, Exception) else one.step_time_s for one in found]
    )


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Timed *runs*, what their steps hang on, and what came out."""

    runs: Sequence[Seen]
    names: tuple[str, ...]
    slopes: Floats
    estimated: Floats  # logarithms of seconds
    before: Floats
    posterior: Posterior

    def told(self, calibration: Calibration) -> Calibration:
        """*calibration* with what the step times say."""
        used = self.posterior.weights > 0
        prior = load_prior()
        ends = self.estimated + self.slopes @ self.posterior.mean
        runs = tuple(
            self._seen(row, float(np.exp(ends[row])))
            for row in np.flatnonzero(used).tolist()
        )
        return replace(
            calibration,
            step=tuple(map(self._parameter, range(len(self.names)))) if runs else (),
            before=_rows(self.before),
            after=_rows(self.posterior.covariance),
            noise=(prior.noise, self.posterior.noise),
            runs=runs,
            left_out=(*calibration.left_out, *self.unlikely),
        )

    @property
    def unlikely(self) -> tuple[LeftOutRun, ...]:
        """Runs that neither the prior nor the others allow: nothing of them is used."""
        return tuple(
            LeftOutRun(row=self.runs[row].row, why=self._why(row))
            for row in np.flatnonzero(self.posterior.weights <= 0).tolist()
        )

    def _parameter(self, place: int) -> Parameter:
        name = self.names[place]
        value = load_coefficients().values.get(name, 1.0)
        used = self.posterior.weights > 0
        return Parameter(
            name=name,
            before=value,
            after=value * exp(self.posterior.mean[place]),
            spread=float(np.sqrt(self.before[place, place])),
            error=float(np.sqrt(self.posterior.covariance[place, place])),
            rows=int((np.abs(self.slopes[used, place]) > TELLS).sum()),
        )

    def _seen(self, row: int, calibrated_s: float) -> SeenRun:
        run = self.runs[row]
        return SeenRun(
            row=run.row,
            framework=run.machine.framework.name,
            device=run.machine.device.name,
            degrees=_degrees(run),
            slopes={
                name: float(f"{slope:.4g}")
                for name, slope in zip(self.names, self.slopes[row], strict=True)
                if slope
            },
            estimated_s=float(np.exp(self.estimated[row])),
            calibrated_s=calibrated_s,
            measured_s=run.step_time_s,
        )

    def _why(self, row: int) -> str:
        seconds, measured = np.exp(self.estimated[row]), self.runs[row].step_time_s
        return (
            f"{measured:.4g} s a step is {measured / seconds:.3g} times the estimate "
            f"of {seconds:.4g} s, and no other row agrees: check its numbers, or "
            "give one more that says the same"
        )


def _step(found: Sequence[tuple[Seen, Answer]]) -> _Step | None:
    """What step times say; None where there are none."""
    if not found:
        return None
    runs = [run for run, _ in found]
    measured = np.log([run.step_time_s or np.nan for run in runs])
    estimated = np.log([answer.step_time_s for _, answer in found])
    names, slopes = _slopes(runs, estimated)
    prior = load_prior()
    before = prior.covariance(names, load_coefficients())
    posterior = updated(before, slopes, measured - estimated, prior.noise)
    for _ in range(ROUNDS - 1):
        mean = np.clip(posterior.mean, -FARTHEST, FARTHEST)
        there = _ends(runs, names, mean)
        misses = np.where(np.isnan(there), estimated + slopes @ mean, there)
        left = measured - misses + slopes @ mean
        posterior = updated(before, slopes, left, prior.noise)
    mean = np.clip(posterior.mean, -FARTHEST, FARTHEST)
    return _Step(
        runs=runs,
        names=names,
        slopes=slopes,
        estimated=estimated,
        before=before,
        posterior=replace(posterior, mean=mean),
    )


def _ends(runs: Sequence[Seen], names: Sequence[str], mean: Floats) -> Floats:
    """Logarithms of seconds where all parameters are moved by *mean*."""
    changes = dict(zip(names, mean.tolist(), strict=True))
    fitted = {k: v for k, v in changes.items() if not k.startswith(f"{PACE}/")}
    paces = [sum(changes[name] for name in _paces(run)) for run in runs]
    return np.asarray(np.log(_seconds(runs, fitted)) + np.array(paces))


def _paces(run: Seen) -> list[str]:
    """The paces of a whole step that a run hangs on."""
    on = run.machine
    return list(
        step_names(
            on.framework.name,
            on.device.name,
            run.layout.precision_name,
            run.job,
            sampled=on.measured is not None,
        )
    )


def _slopes(runs: Sequence[Seen], logs: Floats) -> tuple[tuple[str, ...], Floats]:
    """The parameters that runs hang on, and by how much each moves each."""
    asked = {id(run.machine): run.machine.names for run in runs}
    rows: dict[str, list[int]] = {}
    for row, run in enumerate(runs):
        for name in sorted(asked[id(run.machine)]):
            rows.setdefault(name, []).append(row)
    if len(runs) > 2 * SAMPLED:
        some = np.linspace(0, len(runs) - 1, SAMPLED).astype(int).tolist()
        rows = _that_matter(runs, logs, rows, some)
    alike = _alike(runs)
    own = sorted(set(alike))
    place = {row: number for number, row in enumerate(own)}
    some = {
        name: [place[row] for row in where if row in place]
        for name, where in rows.items()
    }
    found = _columns([runs[row] for row in own], logs[own], some)
    back = [place[row] for row in alike]
    columns = {name: column[back] for name, column in found.items()}
    for row, run in enumerate(runs):
        for name in _paces(run):
            columns.setdefault(name, np.zeros(len(runs)))[row] = 1.0
    return tuple(columns), np.stack(list(columns.values()), axis=1)


def _alike(runs: Sequence[Seen]) -> list[int]:
    """For each run the one whose slopes stand for its own: itself, or in a long table
    the one of its machine and model, taken evenly, whose degrees are nearest."""
    groups: dict[object, list[int]] = {}
    for row, run in enumerate(runs):
        groups.setdefault((id(run.machine), run.job.spec), []).append(row)
    found = list(range(len(runs)))
    every = -(-len(runs) // MOST_PRICED)
    for rows in groups.values():
        taken = rows[::every]
        degrees = np.array([_degrees(runs[row]) for row in taken])
        for row in rows:
            gap = degrees - np.array(_degrees(runs[row]))
            found[row] = taken[int(np.argmin((gap**2).sum(axis=1)))]
    return found


def _degrees(run: Seen) -> tuple[float, ...]:
    return degrees_of_summary(run.layout.summary)


def _that_matter(
    runs: Sequence[Seen],
    logs: Floats,
    rows: Mapping[str, list[int]],
    some: Sequence[int],
) -> dict[str, list[int]]:
    """*rows* of the coefficients that move *some* of the runs, or none of those."""
    place = {row: number for number, row in enumerate(some)}
    inner = {
        name: [place[row] for row in own if row in place] for name, own in rows.items()
    }
    there = {name: own for name, own in inner.items() if own}
    found = _columns([runs[row] for row in some], logs[list(some)], there)
    names = tuple(there)
    spreads = np.sqrt(np.diag(load_prior().covariance(names, load_coefficients())))
    weak = {
        name
        for name, spread in zip(names, spreads, strict=True)
        if np.abs(found[name]).max() * spread < MATTERS
    }
    return {name: own for name, own in rows.items() if name not in weak}


def _columns(
    runs: Sequence[Seen], logs: Floats, rows: Mapping[str, list[int]]
) -> dict[str, Floats]:
    """How each run's logarithm hangs on each coefficient, by differences."""
    found = {name: np.zeros(len(runs)) for name in rows}
    for group in disjoint(rows):
        concerned = sorted({row for name in group for row in rows[name]})
        there = _seconds([runs[row] for row in concerned], dict.fromkeys(group, STEP))
        change = (np.log(there) - logs[concerned]) / STEP
        moved = dict(zip(concerned, np.nan_to_num(change), strict=True))
        for name in group:
            for row in rows[name]:
                found[name][row] = moved[row]
    return found


def disjoint(rows: Mapping[str, Sequence[int]]) -> list[list[str]]:
    """Groups of names whose rows do not meet, greedily, the widest first."""
    groups: list[tuple[set[int], list[str]]] = []
    for name in sorted(rows, key=lambda one: -len(rows[one])):
        own = set(rows[name])
        for taken, names in groups:
            if not taken & own:
                taken |= own
                names.append(name)
                break
        else:
            groups.append((own, [name]))
    return [names for _, names in groups]


def _peaks(
    found: Iterable[tuple[Seen, Answer]],
) -> tuple[tuple[Parameter, ...], dict[str, float], tuple[LeftOutRun, ...]]:
    """What peaks say of memory; how intervals narrow; which are not used."""
    pairs = list(found)
    if not pairs:
        return (), {}, ()
    prior = load_prior().memory
    names: dict[str, float] = {}
    for run, _ in pairs:
        names[f"{KEPT}/framework:{run.machine.framework.name}"] = prior.kept
        names[f"{BESIDE}/device:{run.machine.device.name}"] = prior.beside_gib
    order = list(names)
    slopes, misses = np.zeros((len(pairs), len(order))), np.zeros(len(pairs))
    for row, (run, answer) in enumerate(pairs):
        peak, kept = _peak(answer, run.peak_kind)
        beside = 0.0 if run.peak_kind == "allocated" else GiB
        slopes[row, order.index(_kept(run))] = kept / peak
        slopes[row, order.index(_beside(run))] = beside / peak
        misses[row] = (run.peak_bytes or peak) / peak - 1
    before = np.diag(np.square(list(names.values())))
    posterior = updated(before, slopes, misses, prior.noise)
    used = posterior.weights > 0
    parameters = tuple(
        _memory_parameter(name, place, posterior, before, slopes[used])
        for place, name in enumerate(order)
        if np.abs(slopes[used, place]).max(initial=0.0) > 0
    )
    left_out = tuple(
        LeftOutRun(
            row=pairs[row][0].row,
            why=f"its peak is {1 + misses[row]:.2f} times the estimate, and no other "
            "row is like it",
        )
        for row in np.flatnonzero(~used).tolist()
    )
    ratio = _narrower(before, posterior, slopes, prior.noise)
    narrower: dict[str, list[float]] = {}
    for row in np.flatnonzero(used).tolist():
        on = pairs[row][0].machine
        key = f"{on.framework.name}/{on.device.name}"
        narrower.setdefault(key, []).append(float(ratio[row]))
    means = {key: float(np.mean(several)) for key, several in narrower.items()}
    return parameters, means, left_out


def _kept(run: Seen) -> str:
    return f"{KEPT}/framework:{run.machine.framework.name}"


def _beside(run: Seen) -> str:
    return f"{BESIDE}/device:{run.machine.device.name}"


def _peak(answer: Answer, kind: str) -> tuple[float, float]:
    """Bytes of the fullest rank as they were counted, and what of them passes keep."""
    fullest = max(answer.memory, key=lambda one: float(one.total))
    peak = {
        "device": answer.peak_memory_bytes,
        "reserved": answer.peak_reserved_bytes,
        "allocated": answer.peak_allocated_bytes,
    }[kind]
    return float(peak), float(fullest.activations + fullest.transient)


def _narrower(
    before: Floats, posterior: Posterior, slopes: Floats, noise: float
) -> Floats:
    """By how much the standard deviation of each row's like is less than before."""
    first = np.einsum("ij,jk,ik->i", slopes, before, slopes) + noise**2
    last = np.einsum("ij,jk,ik->i", slopes, posterior.covariance, slopes)
    return np.asarray(np.sqrt((last + posterior.noise**2) / first))


def _memory_parameter(
    name: str, place: int, posterior: Posterior, before: Floats, slopes: Floats
) -> Parameter:
    mean, factor = float(posterior.mean[place]), name.startswith(KEPT)
    return Parameter(
        name=name,
        before=1.0 if factor else 0.0,
        after=exp(mean) if factor else mean,
        spread=float(np.sqrt(before[place, place])),
        error=float(np.sqrt(posterior.covariance[place, place])),
        rows=int((np.abs(slopes[:, place]) > 0).sum()),
    )


def _rows(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in matrix)
