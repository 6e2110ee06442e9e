"""The layout file: a question and its layout as one JSON document.

The layout says what runs; what of the price it leaves open stands in `origin`: options
of the software, the files of measured samples, and what the estimate then was.

A stranger's file is data: every key and value is checked, unknown keys and versions
are refused by name, and the derived `summary` is recomputed and compared, never
trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from costmodel.layout import (
    ENDS,
    LayerPlan,
    Layout,
    Mesh,
    ModuleSharding,
    Ranges,
    Retention,
    Stage,
    Treatment,
    ZeroPlus,
    parse_layers,
    parse_offload,
)
from costmodel.machine import Profile, read_profile
from costmodel.options import Pins
from profiles.commandline import LONGEST_TEXT, JobOptions, given
from profiles.errors import Contradiction, InvalidFile, InvalidSpec, MeshwrightError
from profiles.files import decode
from profiles.limits import LIMITS, require

FORMAT: Final = "meshwright/layout"
VERSION: Final = 1
MOST_RANKS: Final = 10**7
NAMED_AGAIN: Final = "--profile FILE names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked of the price beside the layout, None where nothing was."""

    framework: str | None = None
    grad_dtype: str | None = None
    overlap: str | None = None
    bucket_mb: float | None = None
    imbalance: float | None = None
    compress_gradients: str | None = None

    def __post_init__(self) -> None:
        if self.bucket_mb is not None:
            require("bucket", self.bucket_mb, "bucket_mb")
        if self.imbalance is not None:
            require("imbalance", self.imbalance, "imbalance")

    def under(self, job: JobOptions, pins: Pins) -> tuple[JobOptions, Pins]:
        """*job* and *pins*, with these where they leave something out."""
        mine = given(self)
        return (
            replace(job, **{key: mine[key] for key in _left_out(job, mine)}),
            replace(pins, **{key: mine[key] for key in _left_out(pins, mine)}),
        )

    @classmethod
    def of(cls, job: JobOptions, pins: Pins) -> Options:
        """What *job* and *pins* ask of the price."""
        said = {**given(pins), **given(job)}
        names = [item.name for item in fields(cls)]
        return cls(**{name: said[name] for name in names if name in said})


def _left_out(options: JobOptions | Pins, mine: Mapping[str, Any]) -> list[str]:
    names = {item.name for item in fields(options)} - given(options).keys()
    return [name for name in mine if name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A layout's price when its file was written; p10 and p90 in `interval`s."""

    step_time_s: float
    peak_memory_bytes: float
    peak_allocated_bytes: float
    step_time_interval_s: tuple[float, float]
    peak_memory_interval_bytes: tuple[float, float]

    def __post_init__(self) -> None:
        for seconds in (self.step_time_s, *self.step_time_interval_s):
            require("duration", seconds, "an estimated step time")
        for size in (
            self.peak_memory_bytes,
            self.peak_allocated_bytes,
            *self.peak_memory_interval_bytes,
        ):
            require("bytes", size, "an estimated peak memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`profile_files` are where the samples were, one path for each content hash."""

    options: Options = field(default_factory=Options)
    profile_files: tuple[str, ...] = ()
    estimate: Estimated | None = None

    def __post_init__(self) -> None:
        for file in self.profile_files:
            if not 1 <= len(file) <= LONGEST_TEXT:
                raise InvalidSpec(
                    f"a path in profile_files has 1 to {LONGEST_TEXT} characters, got "
                    f"{len(file):,}"
                )

    def written_to(self, folder: Path) -> Origin:
        """As a file in *folder* has it: paths below it go along when it is moved."""
        files = (Path(file).absolute() for file in self.profile_files)
        here = folder.absolute()
        named = (
            file.relative_to(here) if file.is_relative_to(here) else file
            for file in files
        )
        return replace(self, profile_files=tuple(map(str, named)))

    def read_from(self, folder: Path) -> Origin:
        """As a file in *folder* means it."""
        files = (str(folder.absolute() / file) for file in self.profile_files)
        return replace(self, profile_files=tuple(files))

    def document(self) -> dict[str, Any]:
        """The `origin` member of a file, empty where nothing is known."""
        members = {
            "options": given(self.options),
            "profile_files": list(self.profile_files),
            "estimate": self.estimate and asdict(self.estimate),
        }
        return {name: value for name, value in members.items() if value}

    def profile(
        self, hashes: tuple[str, ...]
    ) -> tuple[Profile | None, tuple[str, ...]]:
        """The samples of *hashes* where they were, else None and a line that says why.

        A stranger's file may name any path: it is read as a profile or not at all, and
        what it holds counts only where its content has the hash.
        """
        if not hashes:
            return None, ()
        lost = "this layout was priced with measured samples"
        if not self.profile_files:
            return None, (f"{lost}; {NAMED_AGAIN}",)
        try:
            found = read_profile([Path(file) for file in self.profile_files])
        except MeshwrightError as error:
            return None, (f"{lost} that cannot be read ({error}); {NAMED_AGAIN}",)
        if found is None or found.hashes != hashes:
            files = ", ".join(self.profile_files)
            return None, (f"{lost}, and {files} has others now; {NAMED_AGAIN}",)
        return found, ()


def require_one_price(one: Options, other: Options) -> None:
    """Raise Contradiction where two layouts are priced for unlike software."""
    for item in fields(Options):
        a, b = (getattr(each, item.name) for each in (one, other))
        if a != b:
            flag = f"--{item.name.replace('_', '-')}"
            raise Contradiction(
                f"--diff: the two layouts were made with {flag} {a or 'left out'} and "
                f"{b or 'left out'}; name the {flag} to price both with"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFile:
    """What the file holds: the job and cluster as written, and the layout.

    `profiles` are the content hashes of the samples that it was priced with.
    """

    job: Mapping[str, Any]
    cluster: Any
    gpus: int
    profiles: tuple[str, ...]
    layout: Layout
    origin: Origin = field(default_factory=Origin)


def file_document(file: LayoutFile) -> dict[str, Any]:
    """The whole file."""
    origin = file.origin.document()
    return {
        "format": FORMAT,
        "version": VERSION,
        "job": dict(file.job),
        "cluster": file.cluster,
        "gpus": file.gpus,
        "profiles": list(file.profiles),
        **({"origin": origin} if origin else {}),
        "layout": file.layout.to_dict(),
    }


# The file's own form, as msgspec checks it.
_MOST: Final = int(LIMITS["size"].most)
_Count = Annotated[int, Meta(ge=1, le=_MOST)]
_Index = Annotated[int, Meta(ge=0, le=_MOST)]
_few: Final = Meta(max_length=10**5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    model: Any
    seq_len: _Count
    global_batch: _Count
    optimizer: str = "adamw"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mesh:
    dp_replicate: _Count
    dp_shard: _Count
    cp: _Count
    tp: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerPlan:
    layers: str
    sharding: str
    zero: _Index
    modules: _Index | None = None  # which of `shardings`
    retention: dict[str, Treatment] = field(default_factory=dict)

    def plan(self, sets: Sequence[tuple[ModuleSharding, ...]]) -> LayerPlan:
        if self.modules is not None and self.modules >= len(sets):
            raise InvalidSpec(
                f"modules is {self.modules}; layout.shardings has {len(sets)}, "
                "numbered from 0"
            )
        return LayerPlan(
            sharding=self.sharding,
            zero=self.zero,
            retention=Retention(tensors=self.retention),
            modules=() if self.modules is None else sets[self.modules],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    layers: str
    held_by: Annotated[tuple[_Index, ...], Meta(min_length=1, max_length=10**5)]
    mesh: _Mesh
    ranks: str
    layer_plans: Annotated[tuple[_LayerPlan, ...], _few]
    ep: _Count = 1
    etp: _Count = 1

    def stage(self, sets: Sequence[tuple[ModuleSharding, ...]]) -> Stage:
        ranks = Ranges.parse(self.ranks)
        if len(ranks) > MOST_RANKS:
            raise InvalidSpec(f"ranks names more than {MOST_RANKS:,} ranks")
        layers = parse_layers(self.layers)
        plans: dict[str, LayerPlan] = {}
        for item in self.layer_plans:
            plans |= dict.fromkeys(parse_layers(item.layers), item.plan(sets))
        missing = [name for name in layers if name not in plans]
        if missing or len(plans) != len(layers):
            raise InvalidSpec(
                f"layer_plans plans {len(plans)} layers, the stage has {len(layers)}"
                + (f"; layer {missing[0]} has no plan" if missing else "")
            )
        return Stage(
            layers=layers,
            plans=tuple(plans[name] for name in layers),
            mesh=Mesh(ranks=ranks, ep=self.ep, etp=self.etp, **asdict(self.mesh)),
            held_by=self.held_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    schedule: str
    virtual_stages: _Count
    micro_batches: _Count
    precision: str
    stages: Annotated[tuple[_Stage, ...], _few]
    gradient_format: str = "fp32"
    flash_attention: bool = True
    cp_kind: str = "ring"
    offload: str = "none"
    offload_to: str = "cpu"
    zero_quantized_weights: bool = False
    zero_hpz_partition_size: _Count = 1
    zero_quantized_gradients: bool = False
    shardings: Annotated[tuple[tuple[ModuleSharding, ...], ...], _few] = ()
    summary: dict[str, Any] = field(default_factory=dict)

    def layout(self, global_batch: int) -> Layout:
        layout = Layout(
            stages=_implied_ends(list(self._stages())),
            schedule=self.schedule,
            virtual_stages=self.virtual_stages,
            micro_batches=self.micro_batches,
            global_batch=global_batch,
            precision_name=self.precision,
            gradient_format=self.gradient_format,
            flash_attention=self.flash_attention,
            cp_kind=self.cp_kind,
            offload=parse_offload(self.offload, self.offload_to),
            zero_plus=ZeroPlus(
                quantized_weights=self.zero_quantized_weights,
                hpz_partition_size=self.zero_hpz_partition_size,
                quantized_gradients=self.zero_quantized_gradients,
            ),
        )
        assert layout.precision.name, "unknown precisions are refused on construction"
        _require_summary(layout, self.summary)
        return layout

    def _stages(self) -> Iterator[Stage]:
        for number, item in enumerate(self.stages):
            try:
                yield item.stage(self.shardings)
            except InvalidSpec as error:
                raise InvalidSpec(f"stages[{number}]: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    format: str
    version: int
    job: _Job
    cluster: Any
    gpus: _Count
    layout: _Layout
    profiles: Annotated[tuple[str, ...], _few] = ()
    origin: Origin = field(default_factory=Origin)


def parse_file(data: object) -> LayoutFile:
    """Read a file's JSON; raises InvalidFile with the path of what is wrong."""
    top = data if isinstance(data, dict) else {}
    if top.get("format") != FORMAT:
        raise InvalidFile(
            f"format {top.get('format')!r} is not {FORMAT!r}: this is not a layout file"
        )
    if top.get("version") != VERSION:
        raise InvalidFile(
            f"layout file version {top.get('version')!r} is unknown; this release "
            f"reads version {VERSION}"
        )
    file = decode(top, _File, what="layout file")
    try:
        layout = file.layout.layout(file.job.global_batch)
    except InvalidSpec as error:
        raise InvalidFile(f"layout: {error}") from error
    if file.gpus != layout.gpus:
        raise InvalidFile(
            f"gpus is {file.gpus} but the layout's ranks are {layout.gpus}"
        )
    if len(file.origin.profile_files) not in (0, len(file.profiles)):
        raise InvalidFile(
            f"origin.profile_files has {len(file.origin.profile_files)} paths and "
            f"profiles {len(file.profiles)} hashes; give one path for each, or none"
        )
    return LayoutFile(
        job=top["job"],
        cluster=file.cluster,
        gpus=file.gpus,
        profiles=file.profiles,
        origin=file.origin,
        layout=layout,
    )


def _require_summary(layout: Layout, given: Mapping[str, Any]) -> None:
    derived = layout.summary
    for key, value in given.items():
        if key not in derived:
            raise InvalidFile(
                f"layout.summary.{key} is unknown; known: {', '.join(derived)}"
            )
        if value != derived[key]:
            raise InvalidFile(
                f"layout.summary.{key} says {value!r} but the stages give "
                f"{derived[key]!r}; leave the summary out or change the stages"
            )


def _implied_ends(stages: list[Stage]) -> tuple[Stage, ...]:
    """Files that name numbered layers alone have their ends on the end stages."""
    if stages and not any(name in ENDS for stage in stages for name in stage.layers):
        first = stages[0]
        stages[0] = replace(
            first,
            layers=("embedding", *first.layers),
            plans=(_plain(first.plans[0]), *first.plans),
        )
        last = stages[-1]
        stages[-1] = replace(
            last,
            layers=(*last.layers, "final_norm", "head"),
            plans=(*last.plans, *(_plain(last.plans[-1]),) * 2),
        )
    return tuple(stages)


def _plain(plan: LayerPlan) -> LayerPlan:
    return LayerPlan(sharding=plan.sharding, zero=plan.zero)
