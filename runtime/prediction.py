"""What the cost model says of a run before its first step, held against the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.layout_file import LayoutFile
from profiles.job import Job

if TYPE_CHECKING:
    from costmodel.estimate import Estimate
    from costmodel.machine import Machine
    from profiles.samples import Samples


ANY: Final = "dgx-h100"  # it multiplies in all formats that are trained in


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """An estimate from profile and catalogue alone, or why there is none."""

    estimate: Estimate | None
    on: Machine | None = None
    warnings: tuple[str, ...] = ()

    def against(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """`predicted`, `error` (predicted / measured − 1) and `missed` of a run."""
        if self.estimate is None or self.on is None or not seen:
            return {"predicted": None, "error": None, "missed": None}
        from runtime.missed import missed

        found = self.estimate
        time = found.step_time_s / seen["step_time_s"]["median"] - 1
        peaks = [peak for peak in seen["peak_allocated_bytes"] if peak]
        memory = found.peak_allocated_bytes / max(peaks) - 1 if peaks else None
        return {
            "predicted": found.document(),
            "error": {"step_time": time, "peak_memory": memory},
            "missed": [asdict(row) for row in missed(found, self.on, seen)],
        }


def predict(file: LayoutFile, job: Job, profiles: tuple[Path, ...]) -> Prediction:
    """Price a layout file on its cluster, with measured samples where they are given.

    A file for the cluster `local` needs the profile of that machine; without one the
    run is not compared. Raises InvalidFile and StaleProfile for unusable profiles.
    """
    from costmodel.estimate import estimate
    from costmodel.machine import machine
    from costmodel.stored import cluster_of
    from profiles.local import LOCAL, local_cluster

    samples = _samples(profiles)
    if file.cluster == LOCAL and samples is None:
        why = (
            "the layout is for the cluster local: give --profile samples.json to "
            "compare the run with its prediction"
        )
        _require_priceable(file, job)
        return Prediction(estimate=None, warnings=(why,))
    local = samples is not None and file.cluster == LOCAL
    where = local_cluster(samples) if local and samples else cluster_of(file)
    on = machine(where, samples=samples).running(file.gpus)
    found = estimate(job, where, file.layout, on=on)
    return Prediction(estimate=found, on=on, warnings=tuple(on.remarks()))


def _require_priceable(file: LayoutFile, job: Job) -> None:
    """Raise what pricing finds wrong with a layout on any device, as on ANY.

    UnknownName or InvalidSpec: a schedule that cannot run with its numbers, layers that
    the model does not have, tensors that nobody makes again.
    """
    from costmodel.layout_price import LayoutPricer
    from costmodel.machine import machine
    from costmodel.schedule import require_schedule
    from profiles.catalog import cluster

    layout = file.layout
    require_schedule(
        layout.schedule, layout.pp, layout.virtual_stages, layout.micro_batches
    )
    LayoutPricer(job=job, layout=layout, machine=machine(cluster(ANY))).columns()


def _samples(profiles: tuple[Path, ...]) -> Samples | None:
    from profiles.sample_files import read_samples

    tables = [read_samples(path) for path in profiles]
    return reduce(lambda one, two: one.merged(two), tables) if tables else None
