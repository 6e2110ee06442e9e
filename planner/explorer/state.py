"""What a page asks: names of the catalogue and numbers, and nothing else.

No text that comes from a page is ever taken for a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Final

from costmodel.options import Pins, layout_options
from costmodel.sweep import changed as with_point
from profiles.commandline import JobOptions, from_keywords, given, job_options
from profiles.errors import InvalidSpec, UnknownName
from profiles.hardware import DEFAULT_CLUSTER, Cluster, Figure, cluster
from profiles.hardware import cluster_names as known_clusters
from profiles.models import Model, model
from profiles.models import names as known_models

OF_THE_JOB: Final = (
    *("model", "cluster", "gpus", "seq_len", "global_batch", "optimizer"),
    *("precision", "framework"),
)
OF_THE_LAYOUT: Final = (
    *("tp", "pp", "dp", "cp", "ep", "micro_batch", "schedule", "virtual_stages"),
    *("zero", "recompute", "sequence_parallel"),
)
OF_THE_CLUSTER: Final = {  # units of what replaces the catalogue's figures
    "intra_gb_per_s": "GB/s",
    "inter_gb_per_s": "GB/s",
    "dollars_per_h": "USD/h",
    "mtbf_h": "h",
}
FIELDS: Final = (*OF_THE_JOB, *OF_THE_LAYOUT, *OF_THE_CLUSTER, "tokens")
MOST_PASSES: Final = 200_000  # that are simulated for one answer
_SOURCE: Final = "set in the explorer"
_AXES: Final = {  # by what a sweep calls them
    "intra_gb_per_s": "intra_node_bandwidth",
    "inter_gb_per_s": "inter_node_bandwidth",
    "dollars_per_h": "device_price",
}
_LARGEST: Final = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Models and clusters by the names that a page may use; *own* ones come from the
    command line."""

    own_models: Mapping[str, Model] = field(default_factory=dict)
    own_clusters: Mapping[str, Cluster] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        return (*self.own_models, *known_models())

    @property
    def clusters(self) -> tuple[str, ...]:
        return (*self.own_clusters, *known_clusters())

    def model(self, name: str) -> Model:
        """Raises UnknownName for what is in no catalogue, a path among it."""
        if name in self.own_models:
            return self.own_models[name]
        if name not in known_models():
            raise UnknownName("model", name, self.models)
        return model(name)

    def cluster(self, name: str) -> Cluster:
        """Raises UnknownName for what is in no catalogue, a path among it."""
        if name in self.own_clusters:
            return self.own_clusters[name]
        if name not in known_clusters():
            raise UnknownName("cluster", name, self.clusters)
        return cluster(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A question as a page asks it, resolved; *where* is the cluster's name."""

    model: Model
    cluster: Cluster
    where: str
    changed: bool  # whether the cluster is another than the catalogue's
    job: JobOptions
    pins: Pins
    tokens: float | None

    @property
    def command(self) -> str:
        """The command line that asks the same, the cluster's own figures apart."""
        words = ["simulate"]
        for name, value in {**given(self.job), **given(self.pins)}.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words.append(f"--{flag} {value}")
        if self.tokens is not None:
            words.append(f"--tokens {self.tokens:.15g}")
        return " ".join(words)


def state_of(asked: object, catalogue: Catalogue) -> State:
    """*asked*, values of JSON by name; what is null is left out.

    Raises InvalidSpec for what is no question, UnknownName for a name that no
    catalogue holds.
    """
    if not isinstance(asked, dict):
        raise InvalidSpec("a question is a JSON object of names and values")
    values = {name: value for name, value in asked.items() if value is not None}
    for name, value in values.items():
        if name not in FIELDS:
            raise UnknownName("field", str(name)[:100], FIELDS)
        if not isinstance(value, str | int | float | bool):
            raise InvalidSpec(f"{name} must be a text, a number, true or false")
        if isinstance(value, str) and not (len(value) <= 100 and value.isprintable()):
            raise InvalidSpec(f"{name} must be printable, at most 100 characters")
    trained = catalogue.model(_text(values, "model"))
    where = _text({"cluster": DEFAULT_CLUSTER, **values}, "cluster")
    known = {name: values[name] for name in values if name in OF_THE_JOB}
    pinned = {name: values[name] for name in values if name in OF_THE_LAYOUT}
    job, pins = from_keywords(
        {**known, **pinned}, {JobOptions: job_options, Pins: layout_options}
    )
    job.require("gpus")
    base = catalogue.cluster(where)
    changed = {
        name: _positive(name, values[name]) for name in OF_THE_CLUSTER if name in values
    }
    return State(
        model=trained,
        cluster=_with(base, changed),
        where=where,
        changed=bool(changed),
        job=replace(job, cluster=where),
        pins=pins,
        tokens=_positive("tokens", values["tokens"]) if "tokens" in values else None,
    )


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise InvalidSpec(f"{name} is missing; give a name of the catalogue")
    return value


def _positive(name: str, value: Any) -> float:
    number = not isinstance(value, bool | str) and isfinite(value)
    if not number or not 0 < value <= _LARGEST:
        raise InvalidSpec(f"{name} must be a number above 0, at most {_LARGEST:g}")
    return float(value)


def _with(where: Cluster, changed: Mapping[str, float]) -> Cluster:
    """The cluster with other links, price and failures; raises Unsupported for several
    islands."""
    if not changed:
        return where
    figures = {
        name: Figure(value=value, unit=OF_THE_CLUSTER[name], source=_SOURCE)
        for name, value in changed.items()
    }
    point = {_AXES[name]: one for name, one in figures.items() if name in _AXES}
    if len(where.island.levels) == 1:
        point.pop("intra_node_bandwidth", None)
    found = with_point(where, point)
    island = found.island
    if "mtbf_h" in figures:
        island = replace(island, mtbf=figures["mtbf_h"])
    return replace(found, name=f"{where.name} (changed)", islands=(island,))
