"""The cost model's prediction of a run before its first step, and its error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.layout import Uniform
from costmodel.simulation import Estimated, LayoutFile
from profiles.commandline import given
from profiles.models import Job
from profiles.units import MB, format_seconds

if TYPE_CHECKING:
    from costmodel.machine import Machine, Profile
    from costmodel.simulation import Estimate


NAMES: Final = {
    "compute": "compute",
    "tensor_comm": "tensor parallel",
    "context_comm": "context parallel",
    "expert_comm": "expert parallel",
    "pipeline_comm": "pipeline transfers",
    "data_comm": "data parallel",
    "bubble": "bubble and waiting",
    "optimizer": "optimizer",
    "offload": "offload",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A part of a step: measured and predicted seconds. Collectives are also counted
    in the part that they belong to."""

    part: str
    measured_s: float
    predicted_s: float
    collective: bool = False


def missed(found: Estimate, on: Machine, seen: Mapping[str, Any]) -> list[Missed]:
    """The parts of the step, then each collective; nothing where none was seen."""
    if "parts_s" not in seen:
        return []
    return [*_parts(found, seen["parts_s"]), *_collectives(on, seen["exchanges"])]


def largest(rows: Sequence[Mapping[str, Any]], step_s: float) -> str:
    """The part with the largest error, of a document's `missed`."""
    errors = {
        row["part"]: row["predicted_s"] - row["measured_s"]
        for row in rows
        if not row["collective"]
    }
    part = max(errors, key=lambda name: abs(errors[name]))
    share = errors[part] / step_s
    return f"largest error: {part}, predicted {share:+.0%} of the measured step"


def _parts(found: Estimate, measured: Mapping[str, float]) -> Iterator[Missed]:
    predicted = dict(found.breakdown_s)
    predicted["compute"] += predicted.pop("recompute", 0.0)
    for name, words in NAMES.items():
        seconds = measured.get(name, 0.0)
        if seconds > 0 or predicted.get(name, 0.0) > 0:
            yield Missed(
                part=words,
                measured_s=seconds,
                predicted_s=float(predicted.get(name, 0.0)),
            )


def _collectives(on: Machine, rows: list[Mapping[str, Any]]) -> Iterator[Missed]:
    """Each collective of each size: its seconds by itself, times its calls a step."""
    import numpy as np

    for row in rows:
        size, count = np.asarray(float(row["size_bytes"])), row["count"]
        ranks = np.asarray(prod(row["ranks"]))
        if row["collective"] == "send":
            each = on.send_s(size, far=np.asarray(len(row["ranks"]) > 1))
        else:
            near = np.asarray(row["ranks"][0])
            each = on.collective_s(row["collective"], size, ranks=ranks, near=near)
        kind = row["collective"].replace("_", "-")
        yield Missed(
            part=f"{row['axis']} {kind} of {row['size_bytes'] / MB:.3g} MB × {count}",
            measured_s=row["median_s"] * count,
            predicted_s=float(each) * count,
            collective=True,
        )


ANY: Final = "dgx-h100"  # it multiplies in all formats that are trained in
ALIKE: Final = 0.01  # prices of one layout that differ by less are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """An estimate from profile and catalogue alone, or why there is none.

    `planned` is what the layout file says that its layout was priced at. Where the
    samples of that price are gone it is what a run is held against.
    """

    estimate: Estimate | None
    on: Machine | None = None
    planned: Estimated | None = None
    warnings: tuple[str, ...] = ()

    @property
    def held_against(self) -> Estimate | Estimated | None:
        """The seconds and bytes that the run is compared with."""
        return self.planned if self.estimate is None else self.estimate

    def against(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """`predicted`, `error` (predicted / measured − 1), `missed` and `planned`."""
        planned = self.planned and asdict(self.planned)
        found = self.held_against
        if found is None or not seen or not seen["step_time_s"]:
            none = {"predicted": None, "error": None, "missed": None}
            return {**none, "planned": planned}
        time = found.step_time_s / seen["step_time_s"]["median"] - 1
        peaks = [peak for peak in seen["peak_allocated_bytes"] if peak]
        memory = found.peak_allocated_bytes / max(peaks) - 1 if peaks else None
        return {
            "predicted": planned if self.estimate is None else self.estimate.document(),
            "error": {"step_time": time, "peak_memory": memory},
            "missed": self._missed(seen),
            "planned": planned,
        }

    def _missed(self, seen: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        if self.estimate is None or self.on is None:
            return None

        return [asdict(row) for row in missed(self.estimate, self.on, seen)]


def predict(file: LayoutFile, job: Job, profiles: tuple[Path, ...]) -> Prediction:
    """Price a layout file on its cluster as this project's runtime carries it out.

    Its samples are those of *profiles*, else those that it was priced with, where they
    are as they were; where they are not, the estimate in the file stands. A file for
    the cluster `local` without either is not compared. Raises InvalidFile and
    StaleProfile for unusable *profiles*.
    """
    from costmodel.machine import machine
    from costmodel.simulation import (
        cluster_of,
        estimate,
        profile_of,
        with_compressed_gradients,
    )
    from profiles.commandline import JobOptions
    from profiles.samples import LOCAL

    profile, said = profile_of(file, JobOptions(profile=profiles))
    planned = file.origin.estimate
    lost = profile is None and bool(file.profiles)
    if profile is None and (file.cluster == LOCAL or (lost and planned is not None)):
        why = (
            "what it was priced at then is compared with the run"
            if planned is not None
            else "the layout is for the cluster local: give --profile samples.json to "
            "compare the run with its prediction"
        )
        _require_priceable(file, job)
        return Prediction(estimate=None, planned=planned, warnings=(*said, why))
    samples = profile.samples if profile else None
    where = cluster_of(file, samples)
    on = machine(where, samples=samples).running(file.gpus)
    whole = Uniform.of_stage(file.layout, file.layout.stages[0])
    sent = file.origin.options.compress_gradients
    on = with_compressed_gradients(on, job, whole, sent)
    found = estimate(job, where, file.layout, on=on)
    return Prediction(
        estimate=found,
        on=on,
        planned=planned,
        warnings=(*said, *on.remarks(), *_otherwise(found, file, profile)),
    )


def _otherwise(
    found: Estimate, file: LayoutFile, profile: Profile | None
) -> Iterator[str]:
    """What to say where the file's layout was priced otherwise than it is now."""
    planned = file.origin.estimate
    if planned is None or abs(found.step_time_s / planned.step_time_s - 1) <= ALIKE:
        return
    # The layout's own, and what is carried out.
    mine = replace(file.origin.options, grad_dtype=None, compress_gradients=None)
    options = [f"--{name.replace('_', '-')} {one}" for name, one in given(mine).items()]
    if options:
        why = f"that was with {' '.join(options)}, this is for what `execute` runs"
    elif profile and set(profile.hashes) != set(file.profiles):
        why = "that was with other samples"
    else:
        why = "the file was changed since, or is of another release"
    yield (
        f"the layout was planned at {format_seconds(planned.step_time_s)} a step and "
        f"is priced at {format_seconds(found.step_time_s)} now: {why}"
    )


def _require_priceable(file: LayoutFile, job: Job) -> None:
    """Raise what pricing finds wrong with a layout on any device, as on ANY.

    UnknownName or InvalidSpec: a schedule that cannot run with its numbers, layers that
    the model does not have, tensors that nobody makes again.
    """
    from costmodel.machine import machine
    from costmodel.schedule import require_schedule
    from costmodel.stages import LayoutPricer
    from profiles.hardware import cluster

    layout = file.layout
    require_schedule(
        layout.schedule, layout.pp, layout.virtual_stages, layout.micro_batches
    )
    LayoutPricer(job=job, layout=layout, machine=machine(cluster(ANY))).columns()
