"""`Pricing`: one layout priced, with all that it takes to write it down and read it
back as the same price."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.layout import Layout
from costmodel.machine import (
    Calibration,
    Machine,
    Profile,
    cluster_called,
    cluster_name,
    read_profile,
)
from costmodel.options import Pins, layout_options
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.layout_files import (
    job_of,
    layout_document,
    machine_of,
    origin_of,
    profile_of,
    read_layout_file,
    require_left_open,
    spelled,
    trace_named,
    write_layout,
)
from costmodel.simulation.question import Question, remarks_on, resolve
from costmodel.simulation.remat_auto import spelled_out
from costmodel.simulation.serialization import Origin
from costmodel.support import framework_warnings, is_local, local_warnings
from profiles import load_model
from profiles.commandline import JobOptions, from_keywords, job_options
from profiles.errors import Unsupported
from profiles.hardware import Cluster
from profiles.models import Job, Model, is_reference
from profiles.samples import LOCAL


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """An estimate, and what it was asked with; `where` is the cluster as it was named
    or spelled."""

    estimate: Estimate
    on: Machine
    where: Any
    origin: Origin
    profile: Profile | None

    def write(self, path: Path) -> None:
        """The layout file, which `from_file` prices the same; raises InvalidFile."""
        write_layout(path, *self._written, origin=self.origin)

    def document(self) -> dict[str, Any]:
        """What the layout file holds."""
        return layout_document(*self._written, origin=self.origin)

    @property
    def _written(self) -> tuple[Job, Any, Layout, tuple[str, ...]]:
        return (
            self.estimate.job,
            spelled(self.where, self.on.cluster),
            self.estimate.layout,
            self.profile.hashes if self.profile else (),
        )


def from_options(
    job: JobOptions,
    pins: Pins,
    calibration: Calibration | None = None,
    trained: Model | None = None,
) -> Pricing:
    """The price of the layout that the options say, of the model that they name or
    that is *trained*; raises as `question.resolve`."""
    if trained is None:
        job.require("model")
    profile = read_profile(job.profile)
    named = cluster_name(job.cluster, profile)
    where = cluster_called(named, profile.samples if profile else None)
    asked = (job, pins, profile, calibration)
    spec = trained or load_model(job.model or "", seq_len=job.seq_len)
    return _priced(spec, where, named, *asked)


def simulate(
    model: str | Path | Model,
    *,
    gpus: int | None = None,
    cluster: str | Path | Cluster | None = None,
    calibration: Calibration | None = None,
    **options: Any,
) -> Estimate:
    """What a layout of *model* costs on *gpus* devices of *cluster*.

    Both by catalogue name, by file, or as `profiles.load_model` and `load_cluster`
    return them; left out, the cluster is `dgx-a100-80gb`. *options* are those of the
    command `simulate` about the question and the layout, by the same names (`tp`,
    `pp`, `zero`, `recompute`, `seq_len`, `framework`, `profile` …) and with the same
    values and defaults; what they leave out stands in the estimate's `assumed`.
    *calibration* is what `costmodel.calibrate` made of runs of your own.

    Raises UnknownName, InvalidSpec for a value that cannot be, Contradiction for a
    layout that cannot run so, Unsupported, InvalidFile and StaleProfile.
    """
    named = {"model": model, "cluster": cluster}
    words = {
        key: one.name if isinstance(one, Model | Cluster) else one
        for key, one in named.items()
    }
    job, pins = from_keywords(
        {**options, **words, "gpus": gpus},
        {JobOptions: job_options, Pins: layout_options},
    )
    profile = read_profile(job.profile)
    where = cluster_name(job.cluster, profile)
    on = cluster
    if not isinstance(on, Cluster):
        on = cluster_called(where, profile.samples if profile else None)
    spec = (
        model
        if isinstance(model, Model)
        else load_model(job.model or "", seq_len=job.seq_len)
    )
    return _priced(spec, on, where, job, pins, profile, calibration).estimate


def _priced(
    spec: Model,
    where: Cluster,
    named: str,
    job: JobOptions,
    pins: Pins,
    profile: Profile | None,
    calibration: Calibration | None,
) -> Pricing:
    """The price on the cluster *where*, which was *named* so."""
    question = resolve(spec, where, job, pins, profile, calibration)
    if job.cluster is None:
        question = replace(question, assumed={"cluster": named, **question.assumed})
    found = priced(question)
    return Pricing(
        estimate=found,
        on=question.machine,
        where=named,
        origin=origin_of(job, pins, profile, found),
        profile=profile,
    )


def priced(question: Question) -> Estimate:
    """The estimate of the layout that is asked about."""
    on = question.machine
    local = is_local(on.cluster)
    return estimate(
        question.job,
        on.cluster,
        spelled_out(question.choice, question.job, on, executable=local),
        on=on,
        assumed=question.assumed,
        warnings=question.warnings,
    )


def from_file(
    file: Path, job: JobOptions, pins: Pins, calibration: Calibration | None = None
) -> Pricing:
    """The price of a layout file, by the software and samples that it was priced with
    where the options name no others.

    Raises Contradiction for options that the file answers itself, and as `machine_of`.
    """
    stored = read_layout_file(file)
    if is_reference(job.model or ""):  # of a module that the file is of
        trace_named(job.model, stored)
        job = replace(job, model=None)
    require_left_open(job, pins, "a layout file, which holds its own answer")
    profile, said = profile_of(stored, job)
    if said and profile is None and stored.cluster == LOCAL and job.cluster is None:
        raise Unsupported(f"{said[0]}: they are of the machine that is local")
    assumed: dict[str, Any] = {}
    samples = profile.samples if profile else None
    trained = job_of(stored)
    on = machine_of(stored, job, pins, samples, assumed, calibration)
    if profile is not None:
        assumed["profile"] = profile.words
    asked = stored.origin.options.under(job, pins)
    warnings = (
        *local_warnings(stored.layout, trained, on.cluster),
        *framework_warnings(asked[0].framework, stored.layout, trained),
        *said,
        *remarks_on(profile, on),
    )
    found = estimate(
        trained, on.cluster, stored.layout, on=on, assumed=assumed, warnings=warnings
    )
    return Pricing(
        estimate=found,
        on=on,
        where=job.cluster or stored.cluster,
        origin=origin_of(*asked, profile, found),
        profile=profile,
    )
