"""The command `profile`: measure this machine, or show what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from profiles.commandline import (
    FilePath,
    command,
    console,
    emit_json,
    flags,
    hint,
    progress,
    warn,
)
from profiles.errors import Contradiction, InvalidQuestion
from profiles.files import require_apart, require_package, write_text
from profiles.importers import import_options
from profiles.measure import measure_options

if TYPE_CHECKING:
    from profiles.hardware import Cluster
    from profiles.importers import ImportOptions
    from profiles.measure import MeasureOptions
    from profiles.samples import Samples


@command("profile", example="profile --out samples.json --quick --model gpt-mini")
@click.option(
    "--out", type=FilePath(), metavar="FILE", help="Write samples to this file."
)
@click.option(
    "--show", type=FilePath(), metavar="FILE", help="Print a file of samples."
)
@click.option(
    "--cluster",
    "cluster_file",
    type=FilePath(),
    metavar="FILE",
    help="Write the measured or imported cluster to this file, for --cluster of plan "
    "and simulate. Without --out its links and a few operators are measured.",
)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of cluster files.")
@click.option(
    "--details", is_flag=True, help="Show the samples by kind, not only the machine."
)
@measure_options
@import_options
def profile(
    options: MeasureOptions,
    imports: ImportOptions,
    *,
    out: Path | None,
    show: Path | None,
    cluster_file: Path | None,
    schema: bool,
    details: bool,
    as_json: bool,
) -> None:
    """What can this machine do? Measures its operators and links.

    The file of samples is for `plan` and `simulate` (--profile samples.json, and
    --cluster local for the machine itself) and for `execute`.
    """
    if schema:
        from profiles.hardware import cluster_schema

        emit_json(cluster_schema())
        return
    from profiles.samples import read_samples, require_writable

    if show is not None:
        if out is not None or cluster_file is not None:
            raise Contradiction("--show reads samples and --out measures; give one")
        _answer(read_samples(show), show, details=details, as_json=as_json)
        return
    if out is None and cluster_file is None:
        raise InvalidQuestion(
            "--out is missing; say where the samples go, such as --out samples.json, "
            "or show those of a file with --show samples.json"
        )
    require_apart({"--out": out, "--cluster": cluster_file}, imports.files)
    for path in (out, cluster_file):
        if path is not None:
            require_writable(path)
    if imports.files:
        found = _imported(options, imports, out, cluster_file)
    else:
        _require_unused(imports)
        found = _measured(options, cluster_file if out is None else None)
    _write(found, out, cluster_file)
    _answer(found, out or cluster_file, details=details, as_json=as_json)


def _measured(options: MeasureOptions, cluster_file: Path | None) -> Samples:
    """The samples of this machine; of few operators where just its cluster is asked."""
    require_package("torch", "measuring", extra="runtime")
    from profiles.measure import measure, resolved

    if cluster_file is not None and options.model is None:
        options = replace(options, model="gpt-tiny")
    question = resolved(options)
    with progress("measuring") as advance:
        measured = measure(question, advance)
    if measured.noise.noisy:
        warn(f"the machine was not quiet: {measured.noise}; measure again when it is")
    return measured.samples


def _imported(
    options: MeasureOptions,
    imports: ImportOptions,
    out: Path | None,
    cluster_file: Path | None,
) -> Samples:
    """The samples of files of other tools, with their cluster."""
    from profiles.hardware import cluster
    from profiles.importers import Known, import_files

    given = None if imports.links_of is None else cluster(imports.links_of)
    found = import_files(
        imports.files,
        Known(
            name="imported" if cluster_file is None else cluster_file.stem,
            gpu=imports.gpu,
            nodes=options.nodes if options.nodes > 1 else None,
            nic_gbit_per_s=imports.nic_gbit_per_s,
            cluster=given,
        ),
    )
    if out is not None and not found.collectives:
        raise InvalidQuestion(
            "--out is for samples, and none of the files is a log of nccl-tests; write "
            "their cluster with --cluster FILE"
        )
    return found


def _require_unused(imports: ImportOptions) -> None:
    for flag in flags(imports):
        raise Contradiction(f"{flag} is of imported files; give --import FILE too")


def _write(found: Samples, out: Path | None, cluster_file: Path | None) -> None:
    from profiles.samples import write_samples

    if cluster_file is not None:
        assert found.cluster is not None, "measured and imported ones have a cluster"
        write_text(cluster_file, _cluster_text(found.cluster, cluster_file.stem))
    if out is not None:
        write_samples(found, out)


def _cluster_text(cluster: Cluster, name: str) -> str:
    from json import dumps

    from profiles.hardware import cluster_document

    document = cluster_document(replace(cluster, name=name))
    return dumps(document, indent=1) + "\n"


def _answer(
    samples: Samples, file: Path | None, *, details: bool, as_json: bool
) -> None:
    if as_json:
        emit_json(_document(samples, file))
        return
    from profiles.samples import sample_view

    screen = console()
    screen.print(sample_view(samples, details=details))
    if not details:
        screen.print(hint("the samples by kind"))


def _document(samples: Samples, file: Path | None) -> dict[str, Any]:
    from dataclasses import asdict

    from profiles.samples import content_hash

    cluster = None if samples.cluster is None else asdict(samples.cluster)
    return {
        "out": str(file),
        "content_hash": content_hash(samples),
        "machine": dict(samples.machine),
        "cluster": cluster,
        "operators": len(samples.operators),
        "collectives": len(samples.collectives),
        "noise": samples.machine.get("noise"),
    }
