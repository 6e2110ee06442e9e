"""The command `simulate`: what would this layout cost?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.inference.options import InferenceOptions, inference_options
from costmodel.pins import Pins, layout_options
from profiles.apart import require_apart
from profiles.command import command, warn
from profiles.errors import Contradiction
from profiles.job_options import JobOptions, job_options
from profiles.options import given
from profiles.parameters import LARGEST_SAMPLES, path, real, text, whole
from profiles.terminal import console, emit_json

if TYPE_CHECKING:
    from costmodel.beside import Beside
    from costmodel.estimate import Estimate
    from costmodel.layout_file import LayoutFile
    from costmodel.machine import Machine
    from costmodel.profiled import Profile


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
    type=real(1, 1e18),
    metavar="N",
    help="Also: days (and dollars, where the device has a price) and total FLOPs to "
    "train N tokens.",
)
@click.option(
    "--rampup-batch-size",
    "rampup",
    type=(whole(), whole(), whole(most=LARGEST_SAMPLES)),
    metavar="START INCREMENT SAMPLES",
    help="Of --tokens: the batch grows from START sequences to the global batch by "
    "INCREMENT, over the first SAMPLES sequences.",
)
@click.option(
    "--compare-data-parallel",
    "compares",
    is_flag=True,
    help="Also: the same replicas under torch.nn.DataParallel, one process for all "
    "GPUs of a node, and under DistributedDataParallel.",
)
@click.option(
    "--flops-convention",
    "convention",
    type=text,
    metavar="NAME",
    help="How FLOPs are counted: megatron, causal (half of attention) or palm.  "
    "[default: megatron]",
)
@click.option(
    "--report", type=path, metavar="FILE.html", help="Write a page about --runs."
)
@inference_options
def simulate(
    file: Path | None,
    job: JobOptions,
    pins: Pins,
    inference: InferenceOptions,
    *,
    runs: Path | None,
    trace: Path | None,
    out: Path | None,
    sweep: tuple[str, ...],
    tokens: float | None,
    rampup: tuple[int, int, int] | None,
    compares: bool,
    convention: str | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """What would this layout cost: seconds, bytes, utilisation?

    Give a layout file, or a model with layout options; or a table of runs.
    """
    of_training = {
        "--runs": runs,
        "--trace": trace,
        "--out": out,
        "--tokens": tokens,
        "--rampup-batch-size": rampup,
        "--compare-data-parallel": compares or None,
        "--flops-convention": convention,
        "--report": report,
        "a layout file": file,
    }
    others = [name for name, value in of_training.items() if value is not None]
    inference.require_alone(job, pins, others)
    if inference.inference:
        from costmodel.inference.command import answer

        answer(job, pins, inference, sweep, as_json=as_json)
        return
    if report is not None and runs is None:
        raise Contradiction("--report is the page of a table of runs; give --runs too")
    require_apart(
        {"--out": out, "--trace": trace, "--report": report}, (file, runs, *job.files)
    )
    several = "--runs" if runs is not None else "--sweep" if sweep else None
    if several is not None:
        _require_of_one(
            several,
            {
                "--trace": trace,
                "--out": out,
                "--tokens": tokens,
                "--rampup-batch-size": rampup,
                "--compare-data-parallel": compares or None,
                "--flops-convention": convention,
                "--sweep": (sweep or None) if runs is not None else None,
            },
        )
    if runs is not None:
        _runs(runs, file, job, pins, report, as_json=as_json)
    elif sweep:
        if file is not None:
            raise Contradiction("--sweep changes layout options, not a layout file")
        _sweep(job, pins, sweep, as_json=as_json)
    else:
        if rampup is not None and tokens is None:
            raise Contradiction(
                "--rampup-batch-size is about a whole run; give its --tokens too"
            )
        from costmodel.beside import beside

        profile = _profile(job)
        where, on, found = (
            _from_file(file, job, pins, profile)
            if file
            else _from_options(job, pins, profile)
        )
        found = _counted(found, convention)
        more = beside(found, on, tokens=tokens, rampup=rampup, compares=compares)
        _write(found, trace, out, where, profile)
        _show(found, more, as_json=as_json)


def _require_of_one(several: str, options: Mapping[str, object]) -> None:
    """Raise Contradiction for *options* that were given and say something of one
    layout, where *several* are priced."""
    wrong = [name for name, value in options.items() if value is not None]
    if wrong:
        be = "is" if len(wrong) == 1 else "are"
        raise Contradiction(
            f"{', '.join(wrong)} {be} about one layout, and {several} prices several; "
            "leave one or the other out"
        )


def _counted(found: Estimate, name: str | None) -> Estimate:
    """The same estimate, its FLOPs counted by the convention called *name*."""
    if name is None:
        return found
    from dataclasses import replace

    from costmodel.flops import convention

    return replace(found, counted=convention(name))


def _profile(job: JobOptions) -> Profile | None:
    from costmodel.profiled import read_profile

    return read_profile(job.profile)


def _from_options(
    job: JobOptions, pins: Pins, profile: Profile | None
) -> tuple[Any, Machine, Estimate]:
    """The cluster's name, the machine, and the price of what the options say."""
    from costmodel.auto_retention import spelled_out
    from costmodel.estimate import estimate
    from costmodel.profiled import cluster_called, cluster_name
    from costmodel.question import resolve
    from costmodel.support import is_local
    from profiles.models.catalog import model

    job.require("model")
    named = cluster_name(job.cluster, profile)
    where = cluster_called(named, profile.samples if profile else None)
    question = resolve(model(job.model or ""), where, job, pins, profile)
    assumed = dict(question.assumed)
    if job.cluster is None:
        assumed = {"cluster": named, **assumed}
    layout = spelled_out(
        question.choice, question.job, question.machine, executable=is_local(where)
    )
    on = question.machine
    return (
        named,
        on,
        estimate(
            question.job,
            where,
            layout,
            on=on,
            assumed=assumed,
            warnings=question.warnings,
        ),
    )


def _from_file(
    file: Path, job: JobOptions, pins: Pins, profile: Profile | None
) -> tuple[Any, Machine, Estimate]:
    """The cluster as written, the machine, and the price of a layout file.

    Another machine, framework or profile may be asked about.
    """
    from costmodel.capabilities import framework_warnings
    from costmodel.estimate import estimate
    from costmodel.machine_asked import remarks_on
    from costmodel.question import unbalanced
    from costmodel.stored import (
        job_of,
        machine_of,
        read_layout_file,
        require_left_open,
    )
    from costmodel.support import local_warnings

    require_left_open(job, pins, "a layout file, which holds its own answer")
    stored = read_layout_file(file)
    samples = profile.samples if profile else None
    assumed: dict[str, Any] = {}
    priced, on = job_of(stored), machine_of(stored, job, pins, samples, assumed)
    on = unbalanced(on, priced, pins.imbalance, assumed)
    if profile is not None:
        assumed["profile"] = profile.words
    warnings = (
        *local_warnings(stored.layout, priced, on.cluster),
        *framework_warnings(job.framework, stored.layout, priced),
        *_other_samples(stored, profile),
        *remarks_on(profile, on),
    )
    return (
        job.cluster or stored.cluster,
        on,
        estimate(
            priced, on.cluster, stored.layout, on=on, assumed=assumed, warnings=warnings
        ),
    )


def _other_samples(stored: LayoutFile, profile: Profile | None) -> tuple[str, ...]:
    """Whether a layout was chosen by samples that are not these."""
    here = set(profile.hashes) if profile else set()
    if not stored.profiles or set(stored.profiles) == here:
        return ()
    if here:
        return ("this layout was priced with other samples than those of --profile",)
    return ("this layout was priced with measured samples; --profile FILE names them",)


def _write(
    found: Estimate,
    trace: Path | None,
    out: Path | None,
    where: Any,
    profile: Profile | None,
) -> None:
    from profiles.documents import write_text

    if trace is not None:
        from costmodel.report.trace import chrome_trace

        write_text(trace, chrome_trace(found))
    if out is not None:
        from costmodel.stored import write_layout

        hashes = profile.hashes if profile else ()
        write_layout(out, found.job, where, found.layout, hashes)


def _show(found: Estimate, more: Beside, *, as_json: bool) -> None:
    if as_json:
        emit_json({**found.document(), **more.members})
        return
    from costmodel.report.table import estimate_view, pairs_table

    for line in found.warnings:
        warn(line)
    screen = console()
    screen.print(estimate_view(found))
    for rows in more.rows:
        screen.print()
        screen.print(pairs_table(rows))


def _sweep(
    job: JobOptions, pins: Pins, axes: tuple[str, ...], *, as_json: bool
) -> None:
    from costmodel.profiled import cluster_called, cluster_name
    from costmodel.whatif import sweep
    from profiles.models.catalog import model

    job.require("model")
    profile = _profile(job)
    named = cluster_name(job.cluster, profile)
    where = cluster_called(named, profile.samples if profile else None)
    rows = list(sweep(model(job.model or ""), where, job, pins, axes, profile))
    if not as_json:
        from costmodel.report.table import point_words, sweep_table

        for point, found in rows:
            for line in () if isinstance(found, str) else found.warnings:
                warn(f"{point_words(point)}: {line}")
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
    runs: Path,
    file: Path | None,
    job: JobOptions,
    pins: Pins,
    report: Path | None,
    *,
    as_json: bool,
) -> None:
    from costmodel.runs.run import read_runs
    from costmodel.validate import compare, document, whole_summary

    if file is not None or given(job) or given(pins):
        raise Contradiction(
            "--runs prices each row by its own cells; leave the layout file and the "
            "model and layout options out"
        )
    compared = list(compare(read_runs(runs)))
    summary = whole_summary(compared)
    if report is not None:
        from costmodel.budget import fitted_to_runs
        from costmodel.report.runs_page import runs_page
        from profiles.documents import write_text

        title = f"Estimates of {runs.name}"
        write_text(report, runs_page(title, compared, summary, fitted_to_runs()))
    if as_json:
        emit_json(document(compared, summary))
        return
    from costmodel.report.summary import summary_view

    console().print(summary_view(summary))
