"""`Run`: what is exported. `Foreign`: what a file of another framework says.

Both speak the command line's words (`JobOptions`, `Pins`): a file becomes the question
that `simulate` and `plan` answer, and a layout that a dozen numbers say becomes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from costmodel.formats.fields import Fields
from costmodel.layout import (
    AUTO,
    Layout,
    Uniform,
    nearly_uniform_of,
    operator_of,
    spell_out,
)
from costmodel.machine import load_framework
from costmodel.options import Pins
from costmodel.simulation import Options
from profiles import load_model
from profiles.commandline import JobOptions, given
from profiles.errors import Contradiction, InvalidQuestion, MeshwrightError, Unsupported
from profiles.models import Job, Model, model, names, parse_model

NAMES: Final = ("grad", "param", "tp", "p2p", "offload")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A job with a layout, on nodes of so many devices; `said` is the layout as a dozen
    numbers, None where none say it.

    `document` is the layout file, which our own executor reads; `fuses` whether the
    devices' usual attention is fused.
    """

    job: Job
    said: Uniform | None
    layout: Layout
    gpus_per_node: int
    fuses: bool = True
    options: Options = field(default_factory=Options)
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choice(self) -> Uniform:
        """The dozen numbers; raises Unsupported where none say it."""
        if self.said is None:
            raise Unsupported(
                "files of other frameworks hold layouts whose stages are alike, with "
                "one choice of recomputation and sharding for all layers, and this one "
                "has several; export torchrun, which runs it as it is, or pin --tp, "
                "--recompute and their like in plan"
            )
        return self.said

    @property
    def gpus(self) -> int:
        return self.layout.gpus

    @property
    def per_node(self) -> int:
        """Devices of a node that are used; raises Unsupported for part of a node."""
        each = min(self.gpus, self.gpus_per_node)
        if self.gpus % each:
            raise Unsupported(
                f"{self.gpus} GPUs are no whole nodes of {each}, which launchers start "
                "one by one; choose a multiple"
            )
        return each

    @property
    def nodes(self) -> int:
        return self.gpus // self.per_node

    @property
    def micro_batches(self) -> int:
        return self.layout.micro_batches

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Numbered layers of each virtual stage, in model order."""
        return tuple(stage.body for stage in self.layout.stages)

    @property
    def shards_parts(self) -> bool:
        """Whether ZeRO's shards span a part of data parallelism alone."""
        return self.choice.zero > 0 and self.choice.zero_group < self.choice.dp

    def says_gradients(self, framework: str) -> bool:
        """Whether the format of gradients is another than *framework*'s, or asked."""
        usual = load_framework(framework).gradients.format
        asked = self.options.grad_dtype is not None
        return asked or self.choice.gradient_format != usual

    def hides(self, framework: str) -> frozenset[str]:
        """Communication that is to be hidden: as was asked, or as *framework* does."""
        if self.options.overlap is None:
            return load_framework(framework).overlap.hidden
        return frozenset(self.options.overlap.split(",")) - {"none"}

    @property
    def words(self) -> str:
        """The run in a line, for the head of a file."""
        summary = self.layout.summary
        told = {name: summary[name] for name in ("tp", "cp", "pp", "ep", "dp", "zero")}
        split = " · ".join(
            f"{name} {'mixed' if size is None else size}" for name, size in told.items()
        )
        return (
            f"{self.job.model} on {self.gpus} GPUs: {split} · {self.micro_batches} "
            f"micro-batches of {summary['micro_batch']}"
        )


def run_of(
    job: Job,
    layout: Layout,
    gpus_per_node: int,
    options: Options,
    document: Mapping[str, Any],
) -> Run:
    """What is exported of *layout*."""
    choice = nearly_uniform_of(layout, job.graph)
    if choice is not None and choice.recompute == AUTO:
        choice = _named(choice, layout, job)
    if any(plan.modules for plan in layout.plans):
        choice = None
    return Run(
        job=job,
        said=choice,
        layout=layout,
        gpus_per_node=gpus_per_node,
        options=options,
        document=document,
    )


def _named(choice: Uniform, layout: Layout, job: Job) -> Uniform | None:
    """*choice* with operators named that are made again, where every layer's are the
    same; None where they differ."""
    again = {
        ",".join(sorted(map(operator_of, plan.retention.recomputed)))
        for stage in layout.stages
        for name, plan in zip(stage.layers, stage.plans, strict=True)
        if name.isdigit()
    }
    found = replace(choice, recompute=again.pop() if len(again) == 1 else AUTO)
    try:
        same = spell_out(found, job.graph, layout.global_batch) == layout
    except MeshwrightError:
        return None
    return found if same else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """What a file says: options of the question, the model's shape, and what of it
    was assumed, left aside, or is not priced.

    `shape` has the fields of a model file, and is None where the file names no model;
    `named` is a catalogue name, `layout` a file of our own that is started, which says
    all of it.
    """

    format: str  # in words
    framework: str
    job: JobOptions = field(default_factory=JobOptions)
    pins: Pins = field(default_factory=Pins)
    shape: Mapping[str, Any] | None = None
    named: str | None = None
    layout: Path | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)  # option → why it is needed
    assumed: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def says(self) -> set[str]:
        """The options that the file gives."""
        own = {*given(self.job), *given(self.pins), "framework"}
        whole = self.shape is not None or self.named is not None
        return own | {"model"} if whole else own

    def question(self, job: JobOptions, pins: Pins) -> tuple[JobOptions, Pins]:
        """The options that price the file: its own, and *job* and *pins* where it says
        nothing.

        Raises Contradiction for an option of the question that says something else,
        InvalidQuestion for what neither says.
        """
        _require_same(self, job)
        asked = replace(job, **given(self.job))
        if asked.framework is None:
            asked = replace(asked, framework=self.framework)
        if job.framework is not None:
            asked = replace(asked, framework=job.framework)
        held = replace(pins, **given(self.pins))
        for name, why in self.lacks.items():
            if getattr(asked, name, None) is None and getattr(held, name, None) is None:
                flag = name.replace("_", "-")
                raise InvalidQuestion(f"--{flag} is missing: {why}")
        return asked, held

    def model(self, named: str | None) -> Model:
        """The model that the file describes, or the one *named* where it has none.

        Raises InvalidQuestion where neither does, Contradiction where they differ.
        """
        if named is None and self.named is not None:
            return model(self.named)
        if named is None:
            if self.shape is None:
                raise InvalidQuestion(
                    f"--model is missing: {self.format} does not say what is trained; "
                    "give it, such as --model gpt-13b"
                )
            return _known(parse_model(dict(self.shape), what=self.format))
        found = load_model(named)
        for name in ("layers", "hidden", "heads"):
            said, has = (self.shape or {}).get(name), getattr(found.spec, name, None)
            if said is not None and said != has:
                raise Contradiction(
                    f"--model {named} has {name} {has}, and {self.format} {said}; "
                    "leave --model out to price what the file describes"
                )
        if self.named not in (None, found.name):
            raise Contradiction(
                f"--model {named} is not {self.named}, which {self.format} names; "
                "leave --model out"
            )
        return found


def _require_same(foreign: Foreign, job: JobOptions) -> None:
    said = given(job)
    for name, value in given(foreign.job).items():
        if name in said and said[name] != value:
            raise Contradiction(
                f"--{name.replace('_', '-')} {said[name]} is not {value}, which "
                f"{foreign.format} says; leave it out, or change the file"
            )


def _known(found: Model) -> Model:
    """The same under its catalogue name, where it has one."""
    for name in names():
        one = model(name)
        if one.spec == found.spec:
            return one
    return found


def overlap_of(framework: str, **hidden: bool | None) -> str | None:
    """The `--overlap` that files mean: of communication by name, True what is hidden,
    False what is not, None as the framework does; None where that is all as it does."""
    usual = load_framework(framework).overlap.hidden
    found = {
        name
        for name in NAMES
        if (name in usual if hidden.get(name) is None else hidden[name])
    }
    if found == set(usual):
        return None
    return ",".join(name for name in NAMES if name in found) or "none"


def gradients_of(framework: str, found: str) -> str | None:
    """The `--grad-dtype` that files mean; None where the framework's is that."""
    return None if found == load_framework(framework).gradients.format else found


def divided(fields: Fields, total: int | None, *degrees: int) -> int | None:
    """The data-parallel degree that *total* GPUs leave; raises InvalidFile."""
    if total is None:
        return None
    inner = 1
    for one in degrees:
        inner *= one
    if total % inner:
        raise Contradiction(
            f"{fields.what}: {total} GPUs do not split into groups of "
            f"{' × '.join(map(str, degrees))}"
        )
    return total // inner
