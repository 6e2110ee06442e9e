"""The layout file: a question and its layout as one JSON document.

`layout_reader` reads it back exactly.

Layout files read: a stranger's file is data.

Every key is checked, unknown keys and versions are refused by name, and the derived
`summary` is recomputed and compared, never trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from costmodel.layout import (
    ENDS,
    Action,
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
    read_shardings,
)
from costmodel.simulation.origin import Origin, read_origin
from profiles.errors import InvalidFile, InvalidSpec
from profiles.limits import require

FORMAT: Final = "meshwright/layout"
VERSION: Final = 1
Modules = tuple[ModuleSharding, ...]


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


MOST_RANKS: Final = 10**7


def parse_file(data: object) -> LayoutFile:
    """Read a file's JSON; raises InvalidFile with the path of what is wrong."""
    top = _object(data, "the file")
    if top.get("format") != FORMAT:
        raise InvalidFile(
            f"format {top.get('format')!r} is not {FORMAT!r}: this is not a layout file"
        )
    if top.get("version") != VERSION:
        raise InvalidFile(
            f"layout file version {top.get('version')!r} is unknown; this release "
            f"reads version {VERSION}"
        )
    members = "format version job cluster gpus profiles origin layout"
    _keys(top, members, "", "profiles origin")
    job = _object(top["job"], "job")
    _keys(job, "model seq_len global_batch optimizer", "job", "optimizer")
    batch = _whole(job["global_batch"], "job.global_batch")
    _whole(job["seq_len"], "job.seq_len")
    _text(job.get("optimizer", "adamw"), "job.optimizer")
    try:
        layout = _layout(_object(top["layout"], "layout"), batch)
    except InvalidSpec as error:
        raise InvalidFile(f"layout: {error}") from error
    gpus = _whole(top["gpus"], "gpus")
    if gpus != layout.gpus:
        raise InvalidFile(f"gpus is {gpus} but the layout's ranks are {layout.gpus}")
    hashes = tuple(str(item) for item in _list(top.get("profiles", []), "profiles"))
    return LayoutFile(
        job=job,
        cluster=top["cluster"],
        gpus=gpus,
        profiles=hashes,
        origin=read_origin(top.get("origin", {}), hashes),
        layout=layout,
    )


def _layout(data: dict[str, Any], global_batch: int) -> Layout:
    _keys(
        data,
        "schedule virtual_stages micro_batches precision gradient_format "
        "flash_attention cp_kind offload offload_to zero_quantized_weights "
        "zero_hpz_partition_size zero_quantized_gradients shardings summary stages",
        "layout",
        "gradient_format flash_attention cp_kind offload offload_to "
        "zero_quantized_weights zero_hpz_partition_size zero_quantized_gradients "
        "shardings summary",
    )
    sets = _read_sharding_sets(data.get("shardings", []))
    stages = [
        _stage(
            _object(item, f"layout.stages[{index}]"), sets, f"layout.stages[{index}]"
        )
        for index, item in enumerate(_list(data["stages"], "layout.stages"))
    ]
    layout = Layout(
        stages=_implied_ends(stages),
        schedule=_text(data["schedule"], "layout.schedule"),
        virtual_stages=_whole(data["virtual_stages"], "layout.virtual_stages"),
        micro_batches=_whole(data["micro_batches"], "layout.micro_batches"),
        global_batch=global_batch,
        precision_name=_text(data["precision"], "layout.precision"),
        gradient_format=_text(
            data.get("gradient_format", "fp32"), "layout.gradient_format"
        ),
        flash_attention=_flag(
            data.get("flash_attention", True), "layout.flash_attention"
        ),
        cp_kind=_text(data.get("cp_kind", "ring"), "layout.cp_kind"),
        offload=parse_offload(
            _text(data.get("offload", "none"), "layout.offload"),
            _text(data.get("offload_to", "cpu"), "layout.offload_to"),
        ),
        zero_plus=_zero_plus(data),
    )
    assert layout.precision.name, "unknown precisions are refused on construction"
    _check_summary(layout, data.get("summary", {}))
    return layout


def _zero_plus(data: dict[str, Any]) -> ZeroPlus:
    def flag(key: str) -> bool:
        return _flag(data.get(key, False), f"layout.{key}")

    size = "zero_hpz_partition_size"
    return ZeroPlus(
        quantized_weights=flag("zero_quantized_weights"),
        hpz_partition_size=_whole(data.get(size, 1), f"layout.{size}"),
        quantized_gradients=flag("zero_quantized_gradients"),
    )


def _check_summary(layout: Layout, given: object) -> None:
    derived = layout.summary
    for key, value in _object(given, "layout.summary").items():
        if key not in derived:
            raise InvalidFile(
                f"layout.summary.{key} is unknown; known: {', '.join(derived)}"
            )
        if value != derived[key]:
            raise InvalidFile(
                f"layout.summary.{key} says {value!r} but the stages give "
                f"{derived[key]!r}; leave the summary out or mend the stages"
            )


def _implied_ends(stages: list[Stage]) -> tuple[Stage, ...]:
    """Files that name numbered layers alone have their ends on the end stages."""
    if not stages or any(name in ENDS for stage in stages for name in stage.layers):
        return tuple(stages)
    first = _extended(stages[0], head=("embedding",))
    stages = [first, *stages[1:]]
    return (*stages[:-1], _extended(stages[-1], tail=("final_norm", "head")))


def _extended(
    stage: Stage, head: tuple[str, ...] = (), tail: tuple[str, ...] = ()
) -> Stage:
    def plain(plan: LayerPlan) -> LayerPlan:
        return LayerPlan(sharding=plan.sharding, zero=plan.zero)

    return Stage(
        layers=(*head, *stage.layers, *tail),
        plans=(
            *(plain(stage.plans[0]) for _ in head),
            *stage.plans,
            *(plain(stage.plans[-1]) for _ in tail),
        ),
        mesh=stage.mesh,
        held_by=stage.held_by,
    )


def _read_sharding_sets(data: object) -> list[Modules]:
    """Explicit shardings of layers, by number."""
    sets = enumerate(_list(data, "layout.shardings"))
    return [read_shardings(one, what=f"layout.shardings[{n}]") for n, one in sets]


def _stage(data: dict[str, Any], sets: list[Modules], path: str) -> Stage:
    _keys(data, "layers held_by mesh ep etp ranks layer_plans", path, "ep etp")
    mesh = _object(data["mesh"], f"{path}.mesh")
    _keys(mesh, "dp_replicate dp_shard cp tp", f"{path}.mesh", "")
    ranks = Ranges.parse(_text(data["ranks"], f"{path}.ranks"))
    if len(ranks) > MOST_RANKS:
        raise InvalidFile(f"{path}.ranks names more than {MOST_RANKS:,} ranks")
    layers = parse_layers(_text(data["layers"], f"{path}.layers"))
    held = _list(data["held_by"], f"{path}.held_by")
    if not held:
        raise InvalidFile(f"{path}.held_by is empty: some pipeline rank must hold it")
    return Stage(
        layers=layers,
        plans=_plans(data["layer_plans"], layers, sets, f"{path}.layer_plans"),
        mesh=Mesh(
            ranks=ranks,
            ep=_whole(data.get("ep", 1), f"{path}.ep"),
            etp=_whole(data.get("etp", 1), f"{path}.etp"),
            **{key: _whole(mesh[key], f"{path}.mesh.{key}") for key in mesh},
        ),
        held_by=tuple(_whole(item, f"{path}.held_by", least=0) for item in held),
    )


def _plans(
    data: object, layers: tuple[str, ...], sets: list[Modules], path: str
) -> tuple[LayerPlan, ...]:
    plans: dict[str, LayerPlan] = {}
    for index, item in enumerate(_list(data, path)):
        here = f"{path}[{index}]"
        entry = _object(item, here)
        _keys(
            entry, "layers sharding zero modules retention", here, "modules retention"
        )
        plan = LayerPlan(
            sharding=_text(entry["sharding"], f"{here}.sharding"),
            zero=_whole(entry["zero"], f"{here}.zero", least=0),
            retention=_retention(entry.get("retention", {}), f"{here}.retention"),
            modules=_modules(entry["modules"], sets, f"{here}.modules")
            if "modules" in entry
            else (),
        )
        for name in parse_layers(_text(entry["layers"], f"{here}.layers")):
            plans[name] = plan
    missing = [name for name in layers if name not in plans]
    if missing or len(plans) != len(layers):
        raise InvalidFile(
            f"{path} plans {len(plans)} layers, the stage has {len(layers)}"
            + (f"; layer {missing[0]} has no plan" if missing else "")
        )
    return tuple(plans[name] for name in layers)


def _modules(data: object, sets: list[Modules], path: str) -> Modules:
    number = _whole(data, path, least=0)
    if number >= len(sets):
        raise InvalidFile(
            f"{path} is {number}; layout.shardings has {len(sets)}, numbered from 0"
        )
    return sets[number]


def _retention(data: object, path: str) -> Retention:
    tensors = {}
    for name, item in _object(data, path).items():
        here = f"{path}.{name}"
        entry = _object(item, here)
        _keys(entry, "action ratio tier bits", here, "ratio tier bits")
        action = _text(entry["action"], f"{here}.action")
        if action not in {item.value for item in Action}:
            raise InvalidFile(f"{here}.action {action!r} is unknown")
        ratio = entry.get("ratio", 1.0)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float):
            raise InvalidFile(f"{here}.ratio must be a number, got {ratio!r}")
        tensors[name] = Treatment(
            action=Action(action),
            ratio=float(ratio),
            tier=entry.get("tier"),
            bits=entry.get("bits"),
        )
    return Retention(tensors=tensors)


def _keys(data: dict[str, Any], known: str, path: str, optional: str) -> None:
    names, prefix = known.split(), f"{path}." if path else ""
    for key in data:
        if key not in names:
            raise InvalidFile(f"{prefix}{key} is unknown; known: {', '.join(names)}")
    for key in names:
        if key not in data and key not in optional.split():
            raise InvalidFile(f"{prefix}{key} is missing")


def _object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidFile(f"{path} must be an object, got {type(value).__name__}")
    return value


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > 10**5:
        raise InvalidFile(f"{path} must be a list of at most 100,000 entries")
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidFile(f"{path} must be text, got {value!r}")
    return value


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidFile(f"{path} must be true or false, got {value!r}")
    return value


def _whole(value: object, path: str, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidFile(f"{path} must be a whole number >= {least}, got {value!r}")
    if value:
        require("size", value, path)
    return value
