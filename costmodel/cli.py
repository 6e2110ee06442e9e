"""The command `simulate`: what would this layout cost?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from costmodel.pins import Pins, layout_options
from profiles.catalog import DEFAULT_CLUSTER
from profiles.command import command, warn
from profiles.errors import Contradiction, Unsupported
from profiles.job_options import JobOptions, job_options
from profiles.options import given
from profiles.parameters import path, text
from profiles.terminal import console, emit_json

if TYPE_CHECKING:
    from costmodel.estimate import Estimate


@command("simulate", example="simulate --model gpt-13b --gpus 64 --tp 4 --pp 2")
@click.argument("file", type=path, required=False, metavar="[LAYOUT.json]")
@job_options
@layout_options
@click.option("--runs", type=path, metavar="FILE.csv", help="Price a table of runs.")
@click.option("--trace", type=path, metavar="FILE", help="Write a Perfetto trace.")
@click.option("--out", type=path, metavar="FILE", help="Write the layout file.")
@click.option(
    "--sweep",
    type=text,
    multiple=True,
    metavar="AXIS=V1,V2,…",
    help="Price each value of a layout option; several sweep their product.",
)
@click.option(
    "--tokens",
    type=click.FloatRange(min=1, max=1e18),
    metavar="N",
    help="Also: days (and dollars, where the device has a price) to train N tokens.",
)
@click.option("--report", type=path, hidden=True)
@click.option("--inference", is_flag=True, hidden=True)
def simulate(
    file: Path | None,
    job: JobOptions,
    pins: Pins,
    *,
    runs: Path | None,
    trace: Path | None,
    out: Path | None,
    sweep: tuple[str, ...],
    tokens: float | None,
    report: Path | None,
    inference: bool,
    as_json: bool,
) -> None:
    """What would this layout cost: seconds, bytes, utilisation?

    Give a layout file, or a model with layout options; or a table of runs.
    """
    for name, asked in (("--report", report), ("--inference", inference)):
        if asked:
            raise Unsupported(f"{name} is not part of this version; leave it out")
    if job.profile:
        raise Unsupported(
            "--profile: pricing from measured samples is not part of this version; "
            "leave it out to price from published figures"
        )
    if runs is not None:
        _runs(runs, file, job, pins, as_json=as_json)
    elif sweep:
        if file is not None:
            raise Contradiction("--sweep changes layout options, not a layout file")
        _sweep(job, pins, sweep, as_json=as_json)
    else:
        found = _from_file(file, job, pins) if file else _from_options(job, pins)
        _write(found, trace, out, _cluster_name(job))
        _show(found, tokens, as_json=as_json)


def _cluster_name(job: JobOptions) -> str:
    return job.cluster or DEFAULT_CLUSTER


def _from_options(job: JobOptions, pins: Pins) -> Estimate:
    from costmodel.estimate import estimate
    from costmodel.question import resolve
    from costmodel.uniform import spell_out
    from profiles.catalog import cluster
    from profiles.models.catalog import model

    job.require("model")
    where = cluster(_cluster_name(job))
    question = resolve(model(job.model or ""), where, job, pins)
    assumed = dict(question.assumed)
    if job.cluster is None:
        assumed = {"cluster": DEFAULT_CLUSTER, **assumed}
    layout = spell_out(question.choice, question.job.graph, question.job.global_batch)
    return estimate(
        question.job,
        where,
        layout,
        on=question.machine,
        assumed=assumed,
        warnings=question.warnings,
    )


def _from_file(file: Path, job: JobOptions, pins: Pins) -> Estimate:
    """Price a layout file; another cluster or framework may be asked about."""
    from costmodel.estimate import estimate
    from costmodel.stored import read_layout

    fixed = {**given(pins), **given(job)}
    for name in ("cluster", "framework"):
        fixed.pop(name, None)
    if fixed:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in fixed)
        raise Contradiction(
            f"{named} cannot change a layout file, which holds its own answer; "
            "leave it out (--cluster and --framework may differ)"
        )
    priced, layout, on = read_layout(file, job.cluster, job.framework)
    assumed = {} if job.framework else {"framework": on.software.name}
    return estimate(priced, on.cluster, layout, on=on, assumed=assumed)


def _write(found: Estimate, trace: Path | None, out: Path | None, where: str) -> None:
    from profiles.documents import write_text

    if trace is not None:
        from costmodel.report.trace import chrome_trace

        write_text(trace, chrome_trace(found))
    if out is not None:
        from costmodel.stored import write_layout

        write_layout(out, found.job, where, found.layout)


def _show(found: Estimate, tokens: float | None, *, as_json: bool) -> None:
    from costmodel.whatif import training

    document = found.document()
    if tokens is not None:
        document["training"] = training(found, tokens)
    if as_json:
        emit_json(document)
        return
    from costmodel.report.table import estimate_view, training_words

    for line in found.warnings:
        warn(line)
    screen = console()
    screen.print(estimate_view(found))
    if tokens is not None:
        screen.print(training_words(document["training"]))


def _sweep(
    job: JobOptions, pins: Pins, axes: tuple[str, ...], *, as_json: bool
) -> None:
    from costmodel.whatif import sweep
    from profiles.catalog import cluster
    from profiles.models.catalog import model

    job.require("model")
    where = cluster(_cluster_name(job))
    rows = list(sweep(model(job.model or ""), where, job, pins, axes))
    if not as_json:
        from costmodel.report.table import sweep_table

        console().print(sweep_table(rows))
        return
    points = [
        {"point": point, "estimate": None, "error": found}
        if isinstance(found, str)
        else {"point": point, "estimate": found.document(), "error": None}
        for point, found in rows
    ]
    emit_json({"sweep": points})


def _runs(
    runs: Path, file: Path | None, job: JobOptions, pins: Pins, *, as_json: bool
) -> None:
    from costmodel.validate import compare_file, summary_table

    if file is not None or given(job) or given(pins):
        raise Contradiction(
            "--runs prices each row by its own cells; leave the layout file and the "
            "model and layout options out"
        )
    document = compare_file(runs)
    if as_json:
        emit_json(document)
    else:
        console().print(summary_table(document))
