"""Devices and clusters by name or from a file.

The catalogue is `profiles/data/devices/*.json`, one device each, and
`profiles/data/clusters/*.json`, one file a vendor: `clusters`, and `aliases`. A cluster
file of a user holds one cluster in the same form; its devices are named, or spelled
out as the catalogue's are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from profiles.errors import InvalidFile, UnknownName, Unsupported
from profiles.files import decode, names_a_file, read_json, require_name, shown
from profiles.hardware.clusters import Cluster, Device

DEFAULT_CLUSTER = "dgx-a100-80gb"
DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file of clusters."""

    clusters: list[dict[str, Any]]
    aliases: dict[str, str]


def device_names() -> tuple[str, ...]:
    """Every device of the catalogue, without aliases."""
    entries, _ = _devices()
    return tuple(entry["name"] for entry in entries.values())


def cluster_names() -> tuple[str, ...]:
    """Every cluster of the catalogue, without aliases."""
    entries, _ = _clusters()
    return tuple(entries)


def knows_cluster(name: str) -> bool:
    """Whether the catalogue has a cluster of that name or alias, in any case."""
    entries, aliases = _clusters()
    return aliases.get(name.lower(), name.lower()) in entries


def device(name: str) -> Device:
    """A device by name or alias, in any case; raises UnknownName."""
    return _device(_device_key(name))


def cluster(name_or_path: str) -> Cluster:
    """A cluster by catalogue name (in any case) or from a cluster file.

    Raises UnknownName with the nearest names, InvalidFile or InvalidSpec for a damaged
    file.
    """
    entries, aliases = _clusters()
    name = name_or_path.lower()
    if knows_cluster(name):
        return _cluster(aliases.get(name, name))
    if names_a_file(name_or_path):
        document = read_json(name_or_path, what="cluster file")
        return parse_cluster(document, what=f"cluster file {shown(name_or_path)}")
    if name == "local":
        raise Unsupported(
            "the cluster local is the machine that a profile was taken on, and none "
            "was given; pass --profile FILE, or name a cluster"
        )
    raise UnknownName("cluster", name_or_path, {*entries, *aliases})


def parse_cluster(document: object, *, what: str) -> Cluster:
    """A cluster from a document; islands name their device or spell it out.

    Raises InvalidFile and InvalidSpec, naming *what* and the field, and UnknownName
    for a device that is not in the catalogue.
    """
    if not isinstance(document, dict):
        raise InvalidFile(f"{what} must be an object with name and islands")
    document = {name: value for name, value in document.items() if name != "$schema"}
    islands = document.get("islands")
    if isinstance(islands, list):
        document = {**document, "islands": [_with_device(item) for item in islands]}
    found = decode(document, Cluster, what=what)
    for name in (found.name, *(island.device.name for island in found.islands)):
        require_name(name)
    return found


def _with_device(island: object) -> object:
    if not isinstance(island, dict) or not isinstance(island.get("device"), str):
        return island
    entries, _ = _devices()
    return {**island, "device": entries[_device_key(island["device"])]}


def _device_key(name: str) -> str:
    entries, aliases = _devices()
    key = name.lower()
    key = aliases.get(key, key)
    if key not in entries:
        raise UnknownName("device", name, {*entries, *aliases})
    return key


@lru_cache(maxsize=64)
def _device(key: str) -> Device:
    entries, _ = _devices()
    return decode(entries[key], Device, what=f"catalogue device {key}")


@lru_cache(maxsize=64)
def _cluster(name: str) -> Cluster:
    entries, _ = _clusters()
    return parse_cluster(entries[name], what=f"catalogue cluster {name}")


@lru_cache(maxsize=1)
def _devices() -> tuple[Mapping[str, dict[str, Any]], Mapping[str, str]]:
    """Undecoded devices by lower-case name, and their keys by alias."""
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted((DATA / "devices").glob("*.json")):
        entry = read_json(path, what="catalogue")
        if not isinstance(entry, dict):
            raise InvalidFile(f"catalogue {shown(path)} must hold a device")
        entries[entry["name"].lower()] = entry
    aliases = {
        alias: key for key, entry in entries.items() for alias in entry["aliases"]
    }
    return entries, aliases


@lru_cache(maxsize=1)
def _clusters() -> tuple[Mapping[str, dict[str, Any]], Mapping[str, str]]:
    """Undecoded clusters by name, and their names by alias."""
    entries: dict[str, dict[str, Any]] = {}
    aliases: dict[str, str] = {}
    for path in sorted((DATA / "clusters").glob("*.json")):
        file = decode(read_json(path, what="catalogue"), _File, what=path.name)
        entries.update((entry["name"], entry) for entry in file.clusters)
        aliases.update(file.aliases)
    return entries, aliases
