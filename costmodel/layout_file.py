"""The layout file: a question and its layout as one JSON document.

`layout_reader` reads it back exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, Final

from costmodel.layout import LayerPlan, Layout, Stage, layer_text
from costmodel.module_sharding import ModuleSharding, sharding_documents
from costmodel.offload import Offload
from costmodel.origin import Origin
from costmodel.retention import Retention
from costmodel.zero_plus import PLAIN, ZeroPlus

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


def layout_document(layout: Layout) -> dict[str, Any]:
    """The `layout` member, as commands print it."""
    sets = _sharding_sets(layout)
    return {
        "schedule": layout.schedule,
        "virtual_stages": layout.virtual_stages,
        "micro_batches": layout.micro_batches,
        "precision": layout.precision_name,
        "gradient_format": layout.gradient_format,
        "flash_attention": layout.flash_attention,
        "cp_kind": layout.cp_kind,
        **_offload_document(layout.offload),
        **_zero_plus_document(layout.zero_plus),
        "summary": layout.summary,
        **({"shardings": [sharding_documents(one) for one in sets]} if sets else {}),
        "stages": [_stage_document(stage, sets) for stage in layout.stages],
    }


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
        "layout": layout_document(file.layout),
    }


def _offload_document(offload: Offload) -> dict[str, str]:
    """States that are not on the device; nothing where all are."""
    if not offload.states:
        return {}
    return {"offload": str(offload), "offload_to": offload.tier}


def _zero_plus_document(plus: ZeroPlus) -> dict[str, bool | int]:
    """What of ZeRO++ is chosen, by the names of DeepSpeed's configuration."""
    names = [item.name for item in fields(ZeroPlus)]
    chosen = {name: getattr(plus, name) for name in names}
    return {
        f"zero_{name}": value
        for name, value in chosen.items()
        if value != getattr(PLAIN, name)
    }


def _sharding_sets(layout: Layout) -> list[Modules]:
    """The explicit shardings of layers, each set once; plans name them by number."""
    plans = (plan for stage in layout.stages for plan in stage.plans)
    return list(dict.fromkeys(plan.modules for plan in plans if plan.modules))


def _stage_document(stage: Stage, sets: list[Modules]) -> dict[str, Any]:
    mesh = stage.mesh
    return {
        "layers": layer_text(stage.layers),
        "held_by": list(stage.held_by),
        "mesh": {
            "dp_replicate": mesh.dp_replicate,
            "dp_shard": mesh.dp_shard,
            "cp": mesh.cp,
            "tp": mesh.tp,
        },
        "ep": mesh.ep,
        "etp": mesh.etp,
        "ranks": str(mesh.ranks),
        "layer_plans": [
            {
                "layers": layer_text(names),
                "sharding": plan.sharding,
                "zero": plan.zero,
                **({"modules": sets.index(plan.modules)} if plan.modules else {}),
                "retention": _retention_document(plan.retention),
            }
            for plan, names in _runs(stage)
        ],
    }


def _runs(stage: Stage) -> Iterator[tuple[LayerPlan, tuple[str, ...]]]:
    """Equal neighbours together."""
    pairs = zip(stage.plans, stage.layers, strict=True)
    for plan, group in groupby(pairs, key=lambda pair: pair[0]):
        yield plan, tuple(name for _, name in group)


def _retention_document(retention: Retention) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, treatment in retention.tensors.items():
        entry: dict[str, Any] = {"action": treatment.action.value}
        if treatment.ratio != 1:
            entry["ratio"] = treatment.ratio
        for key in ("tier", "bits"):
            if getattr(treatment, key) is not None:
                entry[key] = getattr(treatment, key)
        document[name] = entry
    return document
