"""Layout files on disk: read back as a question, written whole or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from costmodel.layout import Layout
from costmodel.layout_file import LayoutFile, file_document
from costmodel.layout_reader import parse_file
from costmodel.machine import Machine, machine
from costmodel.profiled import cluster_called
from costmodel.software import software, software_on
from profiles.catalog import parse_cluster
from profiles.cluster import Cluster
from profiles.documents import read_json, write_text
from profiles.errors import InvalidFile, MeshwrightError, Unsupported
from profiles.job import Job
from profiles.models.catalog import model, parse_model
from profiles.models.model import Model
from profiles.samples import Samples


def read_layout_file(path: Path) -> LayoutFile:
    """A layout file as it stands; raises InvalidFile with the path of what is wrong."""
    return parse_file(read_json(path, what="layout file"))


def machine_of(
    file: LayoutFile,
    cluster_name: str | None = None,
    framework: str | None = None,
    samples: Samples | None = None,
) -> Machine:
    """The machine that a layout file is for; another cluster or framework may be named.

    Raises UnknownName, and StaleProfile for *samples* of another device.
    """
    where = cluster_of(file, samples)
    if cluster_name is not None:
        where = cluster_called(cluster_name, samples)
    chosen = (
        software_on(software(framework), where.islands[0].device) if framework else None
    )
    return machine(where, chosen, samples=samples)


def write_layout(
    path: Path, job: Job, where: Any, layout: Layout, profiles: tuple[str, ...] = ()
) -> None:
    """Write a question and its layout; *where* is a cluster's name or spelling.

    *profiles* are the content hashes of the samples that it was priced with. Raises
    Unsupported for a job that trains adapters alone.
    """
    if job.adapters is not None:
        raise Unsupported(
            "a layout file is of a model trained whole, not of adapters beside frozen "
            "weights; leave the adapters out"
        )
    known = _is_catalogue_model(job)
    file = LayoutFile(
        job={
            "model": job.model if known else {"name": job.model, **asdict(job.spec)},
            "seq_len": job.seq_len,
            "global_batch": job.global_batch,
            "optimizer": job.optimizer,
        },
        cluster=where,
        gpus=layout.gpus,
        profiles=profiles,
        layout=layout,
    )
    write_text(path, json.dumps(file_document(file), indent=1, allow_nan=False) + "\n")


def fingerprint(job: Job) -> dict[str, Any]:
    """What must be the same for two runs to be of one job; JSON values."""
    return {
        "model": {"name": job.model, **asdict(job.spec)},
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "optimizer": job.optimizer,
    }


def _is_catalogue_model(job: Job) -> bool:
    try:
        return bool(model(job.model).spec == job.spec)
    except MeshwrightError:
        return False


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


def cluster_of(file: LayoutFile, samples: Samples | None = None) -> Cluster:
    """The cluster that a layout file names or spells out; `local` is *samples*' own."""
    if isinstance(file.cluster, str):
        return cluster_called(file.cluster, samples)
    return parse_cluster(file.cluster, what="cluster")
