"""Cluster files for people and their editors: the JSON Schema, and how one is written.

The schema follows from the dataclasses; what each field means is said here once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final

from profiles.hardware.catalog import device, device_names
from profiles.hardware.clusters import (
    DIMENSIONS,
    OF_A_NODE,
    Cluster,
    Device,
    Figure,
    Island,
    Level,
)
from profiles.hardware.precisions import Format

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

# What a figure of each field measures; `peak` and `extra` hold several.
FIGURES: Final[Mapping[str, str]] = {
    **OF_A_NODE,
    "memory": "bytes",
    "usable_memory": "bytes",
    "memory_bandwidth": "bytes a second",
    "host_link": "bytes a second",
    "bandwidth": "bytes a second",
    "latency": "seconds",
    "peak": "FLOP a second",
    "cost": "dollars an hour",
}

MEANINGS: Final[Mapping[type, Mapping[str, str]]] = {
    Cluster: {
        "name": "What the cluster is called in tables.",
        "islands": "Groups of like nodes on one fabric each.",
        "between": "The link that joins islands, where there are several.",
        "blocks_launches": "Jobs run with CUDA_LAUNCH_BLOCKING=1.",
        "source": "Where the numbers are from.",
        "notes": "Anything worth knowing.",
    },
    Island: {
        "device": "A name of the catalogue, or a device spelled out.",
        "devices_per_node": "Devices of a node.",
        "nodes": "How many nodes there are; null: as many as asked.",
        "levels": "Links from the innermost domain to the network, which has devices "
        "null.",
        "host_memory": "Host memory of a node, for offloading.",
        "nvme": "What a node's drives hold, for offloading.",
        "drive_read": "What a node's drives read together.",
        "drive_write": "What a node's drives write together.",
        "price": "A node an hour; without it the devices' cost is counted.",
        "power": "What a node draws, all of it; without it the devices' is counted.",
        "mtbf": "Mean time between failures of a node.",
    },
    Level: {
        "name": "Such as node, rack, network.",
        "kind": "nvlink, nvswitch, xgmi, pcie, ici, infiniband, roce, slingshot, efa, "
        "omni-path, ethernet, ena or loopback.",
        "devices": "Devices of one domain; null for the outermost level.",
        "bandwidth": "One way and per device: a node's NICs over its devices.",
        "latency": "Of one hop.",
        "ports": "NICs of a domain, where its devices share them.",
        "rails": "The network joins device i of a node with device i of others alone.",
    },
    Device: {
        "name": "What the device is called.",
        "architecture": "Such as hopper.",
        "memory": "As sold.",
        "usable_memory": "What a process gets: nvidia-smi's total.",
        "memory_bandwidth": "Of the device's own memory.",
        "peak": "Dense peak of matrix products by number format.",
        "multiprocessors": "SMs or CUs.",
        "host_link": "To host memory, one way.",
        "power": "What the device draws.",
        "kin": "The device whose measured efficiency is borrowed.",
        "aliases": "Other names.",
        "source": "Where the counts are from.",
        "notes": "Anything worth knowing.",
        "cost": "One device an hour.",
        "extra": "Further figures.",
    },
    Figure: {
        "value": "The number, as printed in its source.",
        "unit": "Its unit.",
        "source": "Where it is from: a datasheet, a measurement, assumed.",
    },
}
_KINDS: Final[Mapping[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "minimum": 1},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "Figure": {"$ref": "#/$defs/Figure"},
    "Level": {"$ref": "#/$defs/Level"},
    "tuple[str, ...]": {"type": "array", "items": {"type": "string"}},
    "tuple[Level, ...]": {"type": "array", "items": {"$ref": "#/$defs/Level"}},
    "tuple[Island, ...]": {
        "type": "array",
        "items": {"$ref": "#/$defs/Island"},
        "minItems": 1,
    },
}


def cluster_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a cluster file.

    >>> cluster_schema()["required"]
    ['name', 'islands']
    """
    whole = _object(Cluster)
    whole["properties"]["$schema"] = {"type": "string"}
    return {
        "$schema": DRAFT,
        "title": "A cluster for plan, simulate and execute (--cluster)",
        **whole,
        "$defs": {one.__name__: _object(one) for one in (Island, Level, Device)},
    }


def _object(kind: type) -> dict[str, Any]:
    """One dataclass as an object that has its keys and no others."""
    needed = [
        one.name
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    ]
    return {
        "type": "object",
        "properties": {
            one.name: {**_value(one.name, str(one.type)), "description": meaning}
            for one in fields(kind)
            for meaning in (MEANINGS[kind][one.name],)
        },
        "required": needed,
        "additionalProperties": False,
    }


def _value(name: str, kind: str) -> dict[str, Any]:
    bare = kind.removesuffix(" | None")
    if bare == "Device":
        return {"anyOf": [{"enum": [*device_names()]}, {"$ref": "#/$defs/Device"}]}
    if name in ("peak", "extra"):
        return {
            "type": "object",
            "additionalProperties": _figure(FIGURES.get(name)),
            **(
                {"propertyNames": {"enum": [one.value for one in Format]}}
                if name == "peak"
                else {}
            ),
        }
    value = _figure(FIGURES[name]) if bare == "Figure" else dict(_KINDS[bare])
    return {"anyOf": [value, {"type": "null"}]} if bare != kind else value


def _figure(dimension: str | None) -> dict[str, Any]:
    """A figure in the units of what it measures, or in any."""
    units = [
        unit
        for kin, known in DIMENSIONS.items()
        for unit in known
        if dimension in (None, kin)
    ]
    made = _object(Figure)
    made["properties"]["unit"] = {
        "enum": units,
        "description": MEANINGS[Figure]["unit"],
    }
    return made


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """*cluster* as a cluster file holds it: catalogue devices by name, defaults left
    out. `parse_cluster` reads it back."""
    document: dict[str, Any] = _plain(cluster)
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, Device) and _is_catalogue(value):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: _plain(getattr(value, one.name))
            for one in fields(value)
            if getattr(value, one.name) != _default(one)
        }
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value


def _is_catalogue(value: Device) -> bool:
    return value.name in device_names() and device(value.name) == value


def _default(one: Field[Any]) -> object:
    return one.default if one.default_factory is MISSING else one.default_factory()
