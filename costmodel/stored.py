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
from costmodel.software import software
from profiles.catalog import cluster, parse_cluster
from profiles.cluster import Cluster
from profiles.documents import read_json, write_text
from profiles.errors import InvalidFile, MeshwrightError
from profiles.job import Job
from profiles.models.catalog import model, parse_model
from profiles.models.model import Model


def read_layout(
    path: Path, cluster_name: str | None = None, framework: str | None = None
) -> tuple[Job, Layout, Machine]:
    """The job, the layout and the machine that a layout file describes.

    Another cluster or framework may be named. Raises InvalidFile with the path of
    what is wrong, UnknownName, and Infeasible questions' errors.
    """
    file = parse_file(read_json(path, what="layout file"))
    job = job_of(file)
    where = cluster(cluster_name) if cluster_name else _cluster(file.cluster)
    on = machine(where, software(framework)) if framework else machine(where)
    return job, file.layout, on


def write_layout(path: Path, job: Job, where: Any, layout: Layout) -> None:
    """Write a question and its layout; *where* is a cluster's name or spelling."""
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
        profiles=(),
        layout=layout,
    )
    write_text(path, json.dumps(file_document(file), indent=1, allow_nan=False) + "\n")


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


def cluster_of(file: LayoutFile) -> Cluster:
    """The cluster that a layout file names or spells out."""
    return _cluster(file.cluster)


def _cluster(named: object) -> Any:
    if isinstance(named, str):
        return cluster(named)
    return parse_cluster(named, what="cluster")
