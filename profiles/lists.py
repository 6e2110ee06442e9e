"""The commands `models`, `clusters` and `devices`: what the catalogue has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click

from profiles.commandline import (
    Entry,
    command,
    complete_clusters,
    complete_devices,
    complete_models,
    print_list,
)
from profiles.hardware import (
    Cluster,
    Figure,
    Level,
    cluster,
    cluster_names,
    device,
    device_names,
)
from profiles.models import model, names, parameters
from profiles.units import GB, TB, TFLOPS, GiB, format_bytes, format_count

STATES_BYTES = 18  # of bf16 training with fp32 master, gradients and two moments
_words = partial(click.argument, "words", nargs=-1, metavar="[WORD]…")


@command("models", example="meshwright models llama 70b")
@_words(shell_complete=complete_models)
def models(words: tuple[str, ...], *, as_json: bool) -> None:
    """Which models are known? Those in whose entry every WORD stands."""
    columns: dict[str, Callable[[Entry], str]] = {
        "name": lambda one: str(one["name"]),
        "family": lambda one: str(one["family"]),
        "parameters": lambda one: format_count(one["parameters"]),
        "per token": lambda one: format_count(one["active_parameters"]),
        "layers": lambda one: str(one["layers"]),
        "sequence": lambda one: f"{one['seq_len']:,}",
        "states": lambda one: format_bytes(one["states_bytes"]),
    }
    print_list("model", _models(), columns, words, as_json=as_json)


def _models() -> Iterator[dict[str, Any]]:
    for name in names():
        found = model(name)
        counted = parameters(found.spec)
        yield {
            "name": name,
            "family": found.spec.family,
            "parameters": counted.total,
            "active_parameters": counted.active,
            "layers": found.job().graph.body,
            "seq_len": found.seq_len,
            "global_batch": found.global_batch,
            "states_bytes": STATES_BYTES * counted.total,
            "source": found.source,
            "notes": found.notes,
        }


@command("clusters", example="meshwright clusters h100")
@_words(shell_complete=complete_clusters)
def clusters(words: tuple[str, ...], *, as_json: bool) -> None:
    """Which clusters are known? Those in whose entry every WORD stands."""
    columns: dict[str, Callable[[Entry], str]] = {
        "name": lambda one: str(one["name"]),
        "devices a node": lambda one: f"{one['devices_per_node']} x {one['device']}",
        "memory": lambda one: format_bytes(one["memory_bytes"]),
        "links": lambda one: "; ".join(map(_link_words, one["levels"])),
        "USD/h": lambda one: _or_dash(one["device_dollars_per_h"]),
    }
    print_list("cluster", _clusters(), columns, words, as_json=as_json)


def _clusters() -> Iterator[dict[str, Any]]:
    for name in cluster_names():
        found = cluster(name)
        yield {**_island(found), "source": found.source, "notes": found.notes}


def _island(found: Cluster) -> dict[str, Any]:
    island = found.islands[0]
    return {
        "name": found.name,
        "device": island.device.name,
        "devices_per_node": island.devices_per_node,
        "nodes": island.nodes,
        "memory_bytes": island.device.capacity_bytes,
        "levels": [_link(level) for level in island.levels],
        "device_dollars_per_h": island.device_dollars_per_h,
        "device_power_w": island.device_power_w,
    }


def _link(level: Level) -> dict[str, Any]:
    return {
        "kind": level.kind,
        "devices": level.devices,
        "bytes_per_s": level.bytes_per_s,
        "latency_s": level.latency_s,
    }


def _link_words(link: dict[str, Any]) -> str:
    return f"{link['kind']} {link['bytes_per_s'] / GB:.4g} GB/s"


@command("devices", example="meshwright devices hopper")
@_words(shell_complete=complete_devices)
def devices(words: tuple[str, ...], *, as_json: bool) -> None:
    """Which devices are known? Those in whose entry every WORD stands."""
    columns: dict[str, Callable[[Entry], str]] = {
        "name": lambda one: str(one["name"]),
        "memory": lambda one: f"{one['memory_bytes'] / GiB:.4g} GiB",
        "TB/s": lambda one: f"{one['memory_bytes_per_s'] / TB:.3g}",
        "TFLOP/s": lambda one: _peaks(one["peak_flops_per_s"]),
        "W": lambda one: _or_dash(one["power_w"]),
        "USD/h": lambda one: _or_dash(one["dollars_per_h"]),
    }
    print_list("device", _devices(), columns, words, as_json=as_json)


def _devices() -> Iterator[dict[str, Any]]:
    for name in device_names():
        found = device(name)
        yield {
            "name": name,
            "architecture": found.architecture,
            "aliases": list(found.aliases),
            "memory_bytes": found.capacity_bytes,
            "memory_bytes_per_s": found.memory_bytes_per_s,
            "peak_flops_per_s": {key: one.si for key, one in found.peak.items()},
            "power_w": _si(found.power),
            "dollars_per_h": _si(found.cost),
            "source": found.source,
            "notes": found.notes,
        }


def _peaks(peaks: dict[str, float]) -> str:
    """In 16 bits (or the widest that there is), and in 8."""
    wide = next((peaks[name] for name in ("bf16", "fp16", "fp32") if name in peaks), 0)
    shown = f"{wide / TFLOPS:.4g}" if wide else "-"
    return f"{shown}, fp8 {peaks['fp8'] / TFLOPS:.4g}" if "fp8" in peaks else shown


def _si(figure: Figure | None) -> float | None:
    return None if figure is None else figure.si


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
