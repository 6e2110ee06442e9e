"""A present configuration priced, and a priced layout exported: what commands call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from costmodel.formats.deepspeed import needed_by_deepspeed
from costmodel.formats.setup import Foreign, Run, run_of
from costmodel.formats.sources import is_layout_file, read_foreign
from costmodel.formats.targets import exports, files_of, write_files
from costmodel.machine import Calibration
from costmodel.options import ExportOptions, Pins
from costmodel.simulation import (
    Pricing,
    flash_default,
    from_file,
    from_options,
    read_layout_file,
)
from profiles.commandline import JobOptions, without_defaults
from profiles.errors import MeshwrightError
from profiles.hardware import Cluster
from profiles.models import Model
from profiles.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Present:
    """A file's own configuration: priced, and as the question that it answers.

    `job` is that question: the same for every other layout that could answer it.
    """

    file: Path
    pricing: Pricing
    job: JobOptions
    model: Model
    foreign: Foreign | None = None  # None: our own layout file

    @cached_property
    def states(self) -> dict[str, int] | None:
        """What DeepSpeed's own estimators say of ZeRO-2 and 3."""
        framework = self.job.framework or ""
        if not framework.endswith("deepspeed"):
            return None
        try:
            return needed_by_deepspeed(self.run)
        except MeshwrightError:  # a layout that no dozen numbers say
            return None

    @property
    def cluster(self) -> Cluster:
        return self.pricing.on.cluster

    @cached_property
    def run(self) -> Run:
        """As it would be exported."""
        return run_of_pricing(self.pricing)

    def document(self) -> dict[str, Any]:
        """The member `from` of a document."""
        foreign, states = self.foreign, self.states
        own = "meshwright layout file"
        return {
            "file": str(self.file),
            "framework": self.job.framework,
            "format": own if foreign is None else foreign.framework,
            "assumed": {} if foreign is None else dict(foreign.assumed),
            "ignored": [] if foreign is None else list(foreign.ignored),
            **({"deepspeed_estimate": states} if states else {}),
        }

    @property
    def words(self) -> list[str]:
        """What should be known of how the file was read, a line each."""
        foreign, found = self.foreign, list[str]()
        if foreign is not None and foreign.assumed:
            found.append(
                f"{foreign.format}: assumed "
                + ", ".join(f"{name} {one}" for name, one in foreign.assumed.items())
            )
        if foreign is not None and foreign.ignored:
            found.append(
                f"{foreign.format}: without effect on cost, left aside: "
                f"{', '.join(foreign.ignored)}"
            )
        if self.states is not None:
            found.append(states_words(self.states))
        return found


def states_words(states: Mapping[str, int]) -> str:
    return (
        f"DeepSpeed's own estimator: {format_bytes(states['bytes_per_gpu'])} a GPU for "
        "the model's states, without activations and buffers"
    )


def present(
    file: Path, job: JobOptions, pins: Pins, calibration: Calibration | None = None
) -> Present:
    """The configuration that *file* holds, priced; options say what it does not.

    Raises InvalidFile, InvalidQuestion for what neither says, Contradiction for options
    that it answers otherwise or a layout that cannot run, Unsupported.
    """
    if is_layout_file(file):
        return _of_ours(file, without_defaults(job), calibration)
    foreign = read_foreign(file, job.gpus)
    if foreign.layout is not None:
        started = _of_ours(foreign.layout, without_defaults(job), calibration)
        return replace(started, file=file)
    job = without_defaults(job, foreign.says)
    pins = without_defaults(pins, foreign.says)
    asked, held = foreign.question(job, pins)
    trained = foreign.model(job.model)
    if asked.seq_len is None:
        asked = replace(asked, seq_len=trained.seq_len)
    asked = replace(asked, model=None)
    pricing = from_options(asked, held, calibration, trained)
    told = pricing.estimate
    assumed = {**told.assumed, **foreign.assumed}
    if job.seq_len is None and foreign.job.seq_len is None:
        assumed["seq_len"] = asked.seq_len
    warnings = (*foreign.warnings, *told.warnings)
    told = replace(told, assumed=assumed, warnings=warnings)
    return Present(
        file=file,
        pricing=replace(pricing, estimate=told),
        job=_question(asked, replace(pricing, estimate=told)),
        model=trained,
        foreign=foreign,
    )


def _of_ours(file: Path, job: JobOptions, calibration: Calibration | None) -> Present:
    pricing = from_file(file, job, Pins(), calibration)
    asked, _ = read_layout_file(file).origin.options.under(job, Pins())
    found = pricing.estimate
    model = Model(
        name=found.job.model,
        spec=found.job.spec,
        seq_len=found.job.seq_len,
        global_batch=found.job.global_batch,
    )
    return Present(
        file=file, pricing=pricing, job=_question(asked, pricing), model=model
    )


def _question(asked: JobOptions, pricing: Pricing) -> JobOptions:
    """*asked* with all of the job said, so that any other layout is of the same."""
    found = pricing.estimate
    return replace(
        asked,
        gpus=found.layout.gpus,
        seq_len=found.job.seq_len,
        global_batch=found.job.global_batch,
        optimizer=found.job.optimizer,
        precision=found.layout.precision_name,
        model=None,
    )


def run_of_pricing(pricing: Pricing) -> Run:
    """What is exported of a priced layout; raises Unsupported."""
    on = pricing.on.cluster
    found = run_of(
        pricing.estimate.job,
        pricing.estimate.layout,
        min(island.devices_per_node for island in on.islands),
        pricing.origin.options,
        pricing.document(),
    )
    return replace(found, fuses=flash_default(on))


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Files of each target by name, and where they were written."""

    document: Mapping[str, Mapping[str, str]]
    places: tuple[Path, ...]
    states: Mapping[str, int] | None = None

    @property
    def words(self) -> list[str]:
        found = [f"--export wrote {', '.join(map(str, self.places))}"]
        return [*found, states_words(self.states)] if self.states else found


def exported(
    pricing: Pricing, asked: ExportOptions, read: Iterable[Path | None] = ()
) -> Exported:
    """Write a priced layout as the files that are *asked* for, all or none of them.

    Raises Unsupported with what a target cannot express, Contradiction for a file that
    was *read*, InvalidFile for one that cannot be written.
    """
    run = run_of_pricing(pricing)
    found = exports(run, asked.targets)
    places = files_of(found, asked.folder)
    write_files(places, read)
    with_file = any("ds_config.json" in files for files in found.values())
    return Exported(
        document=found,
        places=tuple(places),
        states=needed_by_deepspeed(run) if with_file else None,
    )
