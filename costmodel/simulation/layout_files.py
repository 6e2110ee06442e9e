"""Layout files on disk: read back as a question, written whole or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from costmodel.layout import Layout, Uniform
from costmodel.machine import (
    Calibration,
    Machine,
    Profile,
    cluster_called,
    machine,
    read_profile,
)
from costmodel.options import Pins, cuts_products
from costmodel.simulation.question import (
    NO_CUT,
    framework_of,
    unbalanced,
    with_compressed_gradients,
)
from costmodel.simulation.result import Answer
from costmodel.simulation.serialization import (
    Estimated,
    LayoutFile,
    Options,
    Origin,
    file_document,
    parse_file,
)
from profiles import load_model
from profiles.commandline import JobOptions, given
from profiles.errors import Contradiction, InvalidFile, MeshwrightError, Unsupported
from profiles.files import read_json, shown, write_text
from profiles.hardware import Cluster, knows_cluster, parse_cluster
from profiles.models import (
    Job,
    Model,
    ModuleSpec,
    is_reference,
    model,
    parse_model,
    spec_document,
)
from profiles.samples import LOCAL, Samples

# What a layout file leaves open: where it runs and under which software, not what runs.
LEFT_OPEN: Final = (
    *("cluster", "framework", "profile", "imbalance", "overlap", "bucket_mb"),
    "compress_gradients",
    "grad_dtype",  # in the file; said again, a framework keeps gradients just so
)


def read_layout_file(path: Path) -> LayoutFile:
    """A layout file as it stands; raises InvalidFile with the path of what is wrong."""
    found = parse_file(read_json(path, what="layout file"))
    return replace(found, origin=found.origin.read_from(path.parent))


def machine_of(
    file: LayoutFile,
    wish: JobOptions,
    pins: Pins,
    samples: Samples | None,
    assumed: dict[str, Any],
    calibration: Calibration | None = None,
) -> Machine:
    """The machine that a layout file was priced on, or what is asked of what it leaves
    open.

    Raises UnknownName, Contradiction, and StaleProfile for *samples* of another device.
    """
    wish, pins = file.origin.options.under(wish, pins)
    _require_gradients(file.layout, wish.grad_dtype)
    _require_sequence_parallel(file.layout, pins)
    where = cluster_of(file, samples)
    if wish.cluster is not None:
        where = cluster_called(wish.cluster, samples)
    asked = framework_of(wish, pins, where.islands[0].device, assumed)
    job = job_of(file)
    on = machine(where, asked, samples=samples)
    on = unbalanced(on, job, pins.imbalance, assumed)
    whole = Uniform.of_stage(file.layout, file.layout.stages[0])
    on = with_compressed_gradients(on, job, whole, pins.compress_gradients)
    return on.calibrated(calibration, job, file.layout.precision_name)


def profile_of(
    file: LayoutFile, wish: JobOptions
) -> tuple[Profile | None, tuple[str, ...]]:
    """The samples that are asked for, else those that a file was priced with, where
    they are as they were; and what is to be said of them.

    Raises InvalidFile and StaleProfile for a profile that was asked for.
    """
    asked = read_profile(wish.profile)
    if asked is None and wish.cluster is None:
        return file.origin.profile(file.profiles)
    if not file.profiles or (asked and set(asked.hashes) == set(file.profiles)):
        return asked, ()
    other = "other samples than these" if asked else "measured samples"
    return asked, (f"this layout was priced with {other}",)


def require_left_open(wish: JobOptions, pins: Pins, file: str) -> None:
    """Raise Contradiction for options that *file*, in words, answers itself."""
    said = {**given(pins), **given(wish)}
    fixed = [f"--{name.replace('_', '-')}" for name in said if name not in LEFT_OPEN]
    if fixed:
        may = ", ".join(f"--{name.replace('_', '-')}" for name in LEFT_OPEN[:-1])
        raise Contradiction(
            f"{', '.join(fixed)} cannot change {file}; leave it out ({may} may differ)"
        )


def _require_gradients(layout: Layout, asked: str | None) -> None:
    if asked not in (None, layout.gradient_format):
        raise Contradiction(
            f"--grad-dtype {asked} cannot change a layout file, whose gradients are "
            f"{layout.gradient_format}; leave it out"
        )


def _require_sequence_parallel(layout: Layout, pins: Pins) -> None:
    """Raise Contradiction for hiding a sum behind the product that it waits for."""
    wide = [stage for stage in layout.stages if stage.mesh.tp > 1]
    plain = any(one.sharding == "megatron" for stage in wide for one in stage.plans)
    if plain and cuts_products(pins):
        raise Contradiction(NO_CUT)


def write_layout(
    path: Path,
    job: Job,
    where: Any,
    layout: Layout,
    profiles: tuple[str, ...] = (),
    *,
    origin: Origin | None = None,
) -> None:
    """Write a question and its layout, as `layout_document` has them; raises as it
    does."""
    made = (origin or Origin()).written_to(path.parent)
    document = layout_document(job, where, layout, profiles, origin=made)
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def layout_document(
    job: Job,
    where: Any,
    layout: Layout,
    profiles: tuple[str, ...] = (),
    *,
    origin: Origin | None = None,
) -> dict[str, Any]:
    """A layout file; *where* is a cluster's name or spelling.

    *profiles* are the content hashes of the samples that it was priced with, *origin*
    what else that price was made of. Raises Unsupported for a job that trains adapters
    alone.
    """
    if job.adapters is not None:
        raise Unsupported(
            "a layout file is of a model trained whole, not of adapters beside frozen "
            "weights; leave the adapters out"
        )
    known = _is_catalogue_model(job)
    file = LayoutFile(
        job={
            "model": job.model if known else _spelled_model(job),
            "seq_len": job.seq_len,
            "global_batch": job.global_batch,
            "optimizer": job.optimizer,
        },
        cluster=where,
        gpus=layout.gpus,
        profiles=profiles,
        origin=origin or Origin(),
        layout=layout,
    )
    return file_document(file)


def _spelled_model(job: Job) -> dict[str, Any]:
    """A module is named by where it is made, alone."""
    if isinstance(job.spec, ModuleSpec):
        return spec_document(job.spec)
    return {"name": job.model, **spec_document(job.spec)}


def fingerprint(job: Job) -> dict[str, Any]:
    """What must be the same for two runs to be of one job; JSON values."""
    traced = {"digest": job.spec.digest} if isinstance(job.spec, ModuleSpec) else {}
    return {
        "model": {"name": job.model, **spec_document(job.spec), **traced},
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "optimizer": job.optimizer,
    }


def _is_catalogue_model(job: Job) -> bool:
    if isinstance(job.spec, ModuleSpec):
        return False
    try:
        return bool(model(job.model).spec == job.spec)
    except MeshwrightError:
        return False


def trace_named(model: str | None, file: LayoutFile) -> None:
    """Import and trace the module *model* of a command line, for *file* to name it.

    Raises Contradiction where the file is of another model, and what tracing raises.
    """
    if model is None:
        return
    held = file.job["model"]
    asked = held.get("module") if isinstance(held, dict) else held
    if asked != model or not is_reference(model):
        raise Contradiction(
            f"--model {model} cannot change a layout file, which is of "
            f"{shown(asked or 'a model of its own')}; leave it out"
        )
    load_model(model, seq_len=file.job["seq_len"])


def job_of(file: LayoutFile) -> Job:
    """The job that a layout file names or spells out."""
    named = file.job["model"]
    found: Model
    if isinstance(named, str):
        found = model(named)
    elif isinstance(named, dict):
        found = parse_model(named, what="job.model")
    else:
        raise InvalidFile(f"job.model must be a name or a spec, got {named!r}")
    return Job(
        model=found.name,
        spec=found.spec,
        **{key: value for key, value in file.job.items() if key != "model"},
    )


def origin_of(
    job: JobOptions, pins: Pins, profile: Profile | None, found: Answer
) -> Origin:
    """What a file keeps of how a layout was priced by *job* and *pins*, and at what."""
    low, high = found.interval["peak_memory_bytes"]
    return Origin(
        options=Options.of(job, pins),
        profile_files=tuple(map(str, profile.files)) if profile else (),
        estimate=Estimated(
            step_time_s=float(found.step_time_s),
            peak_memory_bytes=found.peak_memory_bytes,
            peak_allocated_bytes=found.peak_allocated_bytes,
            step_time_interval_s=found.interval_s,
            peak_memory_interval_bytes=(low, high),
        ),
    )


def spelled(where: Any, on: Cluster) -> Any:
    """How a layout file holds the cluster *on*, called *where*: a file of one's own is
    spelled out, for its name means nothing elsewhere."""
    named = not isinstance(where, str) or where.lower() == LOCAL
    return where if named or knows_cluster(where) else asdict(on)


def cluster_of(file: LayoutFile, samples: Samples | None = None) -> Cluster:
    """The cluster that a layout file names or spells out; `local` is *samples*' own."""
    if isinstance(file.cluster, str):
        return cluster_called(file.cluster, samples)
    return parse_cluster(file.cluster, what="cluster")
