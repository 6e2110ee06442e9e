"""The command `simulate`: what would this layout cost?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from costmodel.options import (
    ExportOptions,
    InferenceOptions,
    Pins,
    RunOptions,
    SweepOptions,
    export_options,
    for_inference,
    inference_options,
    layout_options,
    run_options,
    sweep_options,
)
from profiles.commandline import (
    CalibrationOptions,
    FilePath,
    FloatRange,
    IntRange,
    JobOptions,
    PagePath,
    calibration_options,
    collected,
    command,
    complete_models,
    console,
    counted,
    emit_json,
    flags,
    given,
    hint,
    job_options,
    option,
    progress,
    text,
    warn,
    without_defaults,
)
from profiles.errors import Contradiction
from profiles.files import require_apart, shown

if TYPE_CHECKING:
    from costmodel.machine import Calibration
    from costmodel.runs import Compared
    from costmodel.simulation import Estimate, Pricing


PRICED_TOGETHER: Final = 256  # runs of a table, between two words of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line asks for, beside the model and its layout."""

    what_if: SweepOptions
    file: Path | None  # a layout
    run: RunOptions
    runs: Path | None = option(
        type=FilePath(), metavar="FILE.csv", help="Price a table of runs."
    )
    trace: Path | None = option(
        type=FilePath(),
        metavar="FILE",
        help="Write the step as a trace for ui.perfetto.dev: stages, streams, memory.",
    )
    memory_snapshot: Path | None = option(
        type=FilePath(),
        metavar="FILE",
        help="Write the step's memory for pytorch.org/memory_viz (.pickle), or as "
        ".json.",
    )
    compare: Path | None = option(
        type=FilePath(),
        metavar="TRACE",
        help="Also: which actions took longer than priced, by the folder that "
        "`execute --trace` wrote.",
    )
    out: Path | None = option(
        type=FilePath(), metavar="FILE", help="Write the layout file."
    )
    source: Path | None = option(
        flag="--from",
        type=FilePath(),
        metavar="FILE",
        help="Price a file of another framework: Megatron's arguments, DeepSpeed's, "
        "torchtitan's or Hugging Face's configuration, NeMo's or Colossal-AI's Python, "
        "a Slurm script or Kubernetes manifest. Options say what it does not.",
    )
    compares: bool = option(
        default=False,
        flag="--compare-data-parallel",
        is_flag=True,
        help="Also: the same replicas under torch.nn.DataParallel, one process for all "
        "GPUs of a node, and under DistributedDataParallel.",
    )
    compares_networks: bool = option(
        default=False,
        flag="--compare-networks",
        is_flag=True,
        help="Also: the layout on networks of full bisection, oversubscribed, "
        "rail-only and with unlike NICs, with switches, cost and power.",
    )
    dtr: float | None = option(
        flag="--compare-dtr",
        type=FloatRange(0, 1, strictly=True),
        metavar="SHARE",
        help="Also: a micro-batch of the first stage by dynamic tensor "
        "rematerialization, in this share of its bytes, by seven heuristics.",
    )
    radix: int | None = option(
        type=IntRange(4, 1024),
        metavar="N",
        help="With --compare-networks: ports of a switch.  [default: 64]",
    )
    convention: str | None = option(
        flag="--flops-convention",
        type=text,
        metavar="NAME",
        help="How FLOPs are counted: megatron, causal (half of attention) or palm.  "
        "[default: megatron]",
    )
    report: Path | None = option(
        type=PagePath(),
        metavar="FILE.html",
        help="Write a page with charts of the layout, or of --runs.",
    )
    details: bool = option(
        default=False,
        is_flag=True,
        help="Show all that is known of the layout, not a screen of it.",
    )
    as_json: bool

    @property
    def of_one_layout(self) -> dict[str, object]:
        """Options that say something of one layout; None where they are left out."""
        return {
            "--trace": self.trace,
            "--memory-snapshot": self.memory_snapshot,
            "--compare": self.compare,
            "--out": self.out,
            "--tokens": self.run.tokens,
            "--compare-data-parallel": self.compares or None,
            "--compare-networks": self.compares_networks or None,
            "--radix": self.radix,
            "--compare-dtr": self.dtr,
            "--flops-convention": self.convention,
            "--from": self.source,
        }

    @property
    def of_training(self) -> list[str]:
        """What was given that says nothing of inference."""
        options = {
            "--runs": self.runs,
            **self.of_one_layout,
            "--report": self.report,
            "a layout file": self.file,
        }
        return [name for name, value in options.items() if value is not None]

    def require_consistent(self, job: JobOptions, learning: CalibrationOptions) -> None:
        """Raise Contradiction for what cannot be asked for together."""
        require_apart(
            {
                "--out": self.out,
                "--trace": self.trace,
                "--memory-snapshot": self.memory_snapshot,
                "--report": self.report,
                "--save-calibration": learning.save_calibration,
                **self.what_if.outputs,
            },
            (
                *(self.file, self.source, self.runs, self.compare),
                *(*job.files, *learning.files),
            ),
        )
        if self.file is not None and self.source is not None:
            raise Contradiction(
                "--from reads a file in place of a layout file; give one"
            )
        self.what_if.require_sweep()
        if self.runs is not None:
            swept = {"--sweep": self.what_if.sweep or None}
            _require_of_one("--runs", {**self.of_one_layout, **swept})
        elif self.what_if.sweep:
            _require_of_one("--sweep", {**self.of_one_layout, "--report": self.report})
            if self.file is not None:
                raise Contradiction("--sweep changes layout options, not a layout file")
        if self.radix is not None and not self.compares_networks:
            raise Contradiction("--radix is of networks; give --compare-networks too")


@command(
    "simulate",
    example="simulate --model gpt-13b --gpus 64 --tp 4 --pp 2\n"
    "  simulate megatron_args.sh\n"
    "  simulate layout.json --report layout.html\n"
    "  simulate layout.json --export torchtitan",
)
@click.argument(
    "file",
    type=FilePath(),
    required=False,
    metavar="[MODEL|FILE]",
    shell_complete=complete_models,
)
@job_options
@layout_options
@inference_options
@export_options
@calibration_options
@run_options
@sweep_options
@collected("Answers", Wish, "wish")
def simulate(
    job: JobOptions,
    pins: Pins,
    inference: InferenceOptions,
    exporting: ExportOptions,
    learning: CalibrationOptions,
    wish: Wish,
) -> None:
    """What would this layout cost: seconds, bytes, utilisation?

    Give a model with layout options, a layout file or one of another framework; or a
    table of runs (--runs).
    """
    job, wish = _named(job, wish)
    if wish.file is not None or wish.runs is not None:
        job, pins = without_defaults(job), without_defaults(pins)
    if wish.runs is not None:
        wish = without_defaults(wish, but=("runs", "report", "details"))
    if inference.inference:
        job, pins, wish = for_inference(job), for_inference(pins), for_inference(wish)
        learning, exporting = for_inference(learning), for_inference(exporting)
    inference.require_alone(
        job, pins, [*wish.of_training, *flags(learning), *flags(exporting)]
    )
    if inference.inference:
        from costmodel.inference import answer

        shown = {"as_json": wish.as_json, "details": wish.details}
        answer(job, pins, inference, wish.what_if, **shown)
        return
    wish.require_consistent(job, learning)
    _require_exports(exporting, wish)
    calibration = _calibration(learning, job)
    if wish.runs is not None:
        if wish.file is not None or given(job) or given(pins):
            raise Contradiction(
                "--runs prices each row by its own cells; leave the layout file and "
                "the model and layout options out"
            )
        _runs(wish.runs, wish.report, calibration, as_json=wish.as_json)
    elif wish.what_if.sweep:
        _sweep(job, pins, wish.what_if, calibration, as_json=wish.as_json)
    else:
        _one(job, pins, wish, exporting, calibration)


def _named(job: JobOptions, wish: Wish) -> tuple[JobOptions, Wish]:
    """The question with what stands before no option: a model, or a file that holds a
    layout."""
    if wish.file is None:
        return job, wish
    from costmodel.formats import Subject, subject_of

    kind, called = subject_of(str(wish.file)), shown(wish.file)
    if kind is Subject.MODEL:
        job = without_defaults(job, ["model"])
        if job.model is not None:
            raise Contradiction(f"{called} and --model {job.model}: give one model")
        return replace(job, model=str(wish.file)), replace(wish, file=None)
    if kind is Subject.FOREIGN:
        if wish.source is not None:
            raise Contradiction(f"{called} and --from {wish.source}: give one file")
        return job, replace(wish, file=None, source=wish.file)
    return job, wish


def _require_exports(exporting: ExportOptions, wish: Wish) -> None:
    """Raise for targets that are not known, or of several layouts."""
    if not given(exporting):
        return
    from costmodel.formats import require_targets

    if wish.runs is not None or wish.what_if.sweep:
        _require_of_one(
            "--runs" if wish.runs is not None else "--sweep", {"--export": True}
        )
    require_targets(exporting.targets, exporting.export_to)


def _calibration(learning: CalibrationOptions, job: JobOptions) -> Calibration | None:
    """What the user's own runs say, where some are given."""
    if not given(learning):
        return None
    from costmodel.runs import calibration_of

    return calibration_of(learning, job)


def _one(
    job: JobOptions,
    pins: Pins,
    wish: Wish,
    exporting: ExportOptions,
    calibration: Calibration | None,
) -> None:
    """The estimate of one layout, and the files it is written to."""
    from costmodel.report import RADIX, extras
    from profiles.files import write_text

    priced, members = _priced(job, pins, wish, calibration)
    found = _counted(priced.estimate, wish.convention)
    more = list(
        extras(
            found,
            priced.on,
            run=wish.run,
            compares=wish.compares,
            radix=(wish.radix or RADIX) if wish.compares_networks else None,
            dtr=wish.dtr,
        )
    )
    if wish.compare is not None:
        more.append(_compared(wish.compare, found))
    drawn = list(_files(wish, found, priced))
    if exporting.targets:
        from costmodel.formats import exported

        files = exported(priced, exporting, (wish.file, wish.source))
        members["exports"] = files.document
        for line in files.words if not wish.as_json else ():
            warn(line)
    if wish.out is not None:
        priced.write(wish.out)
    for file, content in drawn:
        write_text(file, content)
    members |= _member(calibration)
    _show(found, more, members, as_json=wish.as_json, details=wish.details)
    if not wish.as_json:
        _show_calibration(calibration)


def _priced(
    job: JobOptions, pins: Pins, wish: Wish, calibration: Calibration | None
) -> tuple[Pricing, dict[str, Any]]:
    """The layout that is asked about, priced; and what a file of another framework
    adds to the document."""
    from costmodel.simulation import from_file, from_options

    if wish.source is None:
        asked = (job, pins, calibration)
        one = from_file(wish.file, *asked) if wish.file else from_options(*asked)
        return one, {}
    from costmodel.formats import present

    now = present(wish.source, job, pins, calibration)
    for line in now.words if not wish.as_json else ():
        warn(line)
    return now.pricing, {"from": now.document()}


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

    from costmodel.simulation import convention

    return replace(found, counted=convention(name))


def _files(
    wish: Wish, found: Estimate, priced: Pricing
) -> Iterator[tuple[Path, str | bytes]]:
    """What is written of one layout, made before any of it is."""
    if wish.trace is not None:
        from costmodel.trace import priced_trace, trace_text

        yield wish.trace, trace_text(priced_trace(found))
    if wish.memory_snapshot is not None:
        from costmodel.trace import snapshot_bytes

        yield wish.memory_snapshot, snapshot_bytes(wish.memory_snapshot, found)
    if wish.report is not None:
        from costmodel.pages import estimate_page

        yield wish.report, estimate_page(found, priced.on.cluster)


def _compared(trace: Path, found: Estimate) -> tuple[str, Any, Any]:
    """The measured trace beside the priced one: a member of the document, a table."""
    from costmodel.trace import compared, comparison_table, priced_trace, read_trace

    both = compared(priced_trace(found), read_trace(trace))
    return "compared", both.document(), comparison_table(both)


def _show(
    found: Estimate,
    more: Sequence[tuple[str, Any, Any]],
    members: Mapping[str, Any],
    *,
    as_json: bool,
    details: bool,
) -> None:
    if as_json:
        own = {name: member for name, member, _ in more}
        emit_json({**found.document(), **own, **members})
        return
    from costmodel.report import estimate_view, pairs_table

    for line in found.warnings:
        warn(line)
    screen = console()
    screen.print(estimate_view(found, details=details))
    for _, _, rows in more:
        screen.print()
        screen.print(pairs_table(rows) if isinstance(rows, tuple) else rows)
    if not details:
        screen.print(hint("all assumed values, and memory of every stage"))


def _member(calibration: Calibration | None) -> dict[str, Any]:
    return {} if calibration is None else {"calibration": calibration.document()}


def _show_calibration(calibration: Calibration | None) -> None:
    if calibration is None:
        return
    from costmodel.report import calibration_view

    screen = console()
    screen.print()
    screen.print(calibration_view(calibration))


def _sweep(
    job: JobOptions,
    pins: Pins,
    what_if: SweepOptions,
    calibration: Calibration | None,
    *,
    as_json: bool,
) -> None:
    """An estimate for each point, as a table, as files, or as one document."""
    from costmodel.machine import cluster_called, cluster_name, read_profile
    from costmodel.simulation import priced, resolve
    from costmodel.sweep import (
        CELLS,
        changed,
        columns_of,
        csv_text,
        points,
        show_sweep,
        sweep,
    )
    from profiles import load_model
    from profiles.files import write_text

    profile = read_profile(job.profile)
    samples = profile.samples if profile else None

    def price(point: Mapping[str, Any], job: JobOptions, pins: Pins) -> Estimate:
        job.require("model")
        known = load_model(job.model or "", seq_len=job.seq_len)
        named = cluster_called(cluster_name(job.cluster, profile), samples)
        where = changed(named, point)
        return priced(resolve(known, where, job, pins, profile, calibration))

    of = len(list(points(what_if.sweep)))
    priced_each = sweep(what_if.sweep, (job, pins), price)
    rows = list(counted(priced_each, of, "sweeping"))
    if what_if.plot is not None:
        from costmodel.pages import sweep_page

        drawn = sweep_page(rows)
        write_text(what_if.plot, drawn)
    if what_if.csv is not None:
        write_text(what_if.csv, csv_text(rows, CELLS))
    show_sweep(rows, columns_of(rows), more=_member(calibration), as_json=as_json)
    if not as_json:
        _show_calibration(calibration)


def _runs(
    runs: Path,
    report: Path | None,
    calibration: Calibration | None,
    *,
    as_json: bool,
) -> None:
    from costmodel.runs import compare, document, read_runs, whole_summary

    compared: list[Compared] = []
    asked = list(read_runs(runs))
    with progress("pricing") as advance:
        for first in range(0, len(asked), PRICED_TOGETHER):
            some = asked[first : first + PRICED_TOGETHER]
            compared += compare(some, calibration)
            advance(len(compared), len(asked))
    summary = whole_summary(compared)
    if report is not None:
        from costmodel.machine import load_coefficients
        from costmodel.report import runs_page
        from profiles.files import write_text

        title = f"Estimates of {runs.name}"
        fitted = load_coefficients().entries
        write_text(report, runs_page(title, compared, summary, fitted))
    if as_json:
        emit_json({**document(compared, summary), **_member(calibration)})
        return
    from costmodel.runs import summary_view

    console().print(summary_view(summary))
    _show_calibration(calibration)
