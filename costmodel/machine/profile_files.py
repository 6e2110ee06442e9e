"""`Profile`: the files of samples that a question comes with, and their machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Final

from costmodel.machine.measured import NOISY
from profiles.errors import StaleProfile
from profiles.files import shown
from profiles.hardware import Cluster, catalog
from profiles.samples import (
    GAPS,
    LOCAL,
    Samples,
    content_hash,
    local_cluster,
    read_samples,
)

# Facts of a machine that may differ from one profile of it to the next.
_OWN: Final = (
    "command",
    "date",
    GAPS,
    "memory bytes",
    "noise",
    "ranks",
    "software",
    "threads",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Samples of one or several `files` together. `hashes` are those of the files."""

    samples: Samples
    hashes: tuple[str, ...]
    files: tuple[Path, ...]
    warnings: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Whose samples they are, and how quiet it was, in a few words."""
        known = self.samples.machine
        parts = (known.get(name) for name in ("device", "torch", "noise"))
        return (
            ", ".join(part for part in parts if part) or f"{len(self.samples)} samples"
        )


def read_profile(paths: Sequence[Path]) -> Profile | None:
    """The samples of all files; where two have a key, the later one's is taken.

    Raises InvalidFile, and StaleProfile for samples of unlike software.
    """
    if not paths:
        return None
    tables = [read_samples(path) for path in paths]
    _require_one_software(paths, tables)
    merged = reduce(lambda one, other: one.merged(other), tables)
    return Profile(
        samples=replace(merged, machine=_facts(tables), cluster=_largest(tables)),
        hashes=tuple(content_hash(table) for table in tables),
        files=tuple(paths),
        warnings=tuple(_unlike(tables)),
    )


def cluster_name(asked: str | None, profile: Profile | None) -> str:
    """What was asked; else the machine of the profile; else the default."""
    if asked is not None:
        return asked
    known = profile is not None and profile.samples.cluster is not None
    return LOCAL if known else catalog.DEFAULT_CLUSTER


def cluster_called(name: str, samples: Samples | None) -> Cluster:
    """A cluster by name or file; `local` is the machine of *samples*.

    Raises as `catalog.cluster`, which says what is missing where there are none.
    """
    if samples is not None and name.lower() == LOCAL:
        return local_cluster(samples)
    return catalog.cluster(name)


def _require_one_software(paths: Sequence[Path], tables: Sequence[Samples]) -> None:
    """Versions must agree; the threads of a rank may differ."""
    found: dict[str, Path] = {}
    for path, table in zip(paths, tables, strict=True):
        for key in table.operators:
            found.setdefault(key.software.partition("/")[0], path)
    for (one, first), (other, second) in pairwise(found.items()):
        raise StaleProfile(
            f"{shown(first)} has samples of {one}, {shown(second)} of {other}; "
            "measure both with one version, or give one of them"
        )


def _facts(tables: Iterable[Samples]) -> Mapping[str, str]:
    """What is known of the machine; of several notes on noise the worst one stays."""
    facts: dict[str, str] = {}
    for table in tables:
        noise = facts.get("noise", "")
        facts.update(table.machine)
        if noise.startswith(NOISY):
            facts["noise"] = noise
    return facts


def _largest(tables: Iterable[Samples]) -> Cluster | None:
    """The machine with most ranks: fewer ranks are measured on the same one."""
    known = [table.cluster for table in tables if table.cluster is not None]
    return max(known, key=lambda one: one.gpus or 0, default=None)


def _unlike(tables: Sequence[Samples]) -> Iterator[str]:
    for one, other in pairwise(tables):
        for name in sorted(one.machine.keys() & other.machine.keys() - {*_OWN}):
            if one.machine[name] != other.machine[name]:
                yield (
                    f"the profiles differ in {name}: {one.machine[name]} and "
                    f"{other.machine[name]}"
                )
