"""`Layout`: the plan itself, complete at birth (contract 1).

Three levels: the plan (micro-batches, schedule, precision), its stages in model order
(one for each *virtual* stage, with the mesh that holds it) and, in each stage, a plan
for every layer. Nothing in it is a default that somebody else fills in later.

`Ranges`: whole numbers written as people write them, `0-7,16-23`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

from costmodel.layout.offload import AS_IT_IS, NOTHING, PLAIN, Offload, ZeroPlus
from costmodel.layout.retention import Action, Retention
from costmodel.layout.sharding_spec import ModuleSharding, sharding_documents
from profiles.errors import InvalidSpec
from profiles.hardware import Precision, precision
from profiles.notebook import html_table

Document = dict[str, Any]
_TEXT = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*")


@dataclass(frozen=True, slots=True)
class Ranges:
    """Disjoint rising spans `(first, last)`, both ends included."""

    spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        before = -1
        for first, last in self.spans:
            if first <= before or last < first:
                raise InvalidSpec(f"{self} must rise and not overlap, such as 0-7,16")
            before = last

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """Read `0-7,16`; raises InvalidSpec.

        >>> len(Ranges.parse("0-7,16"))
        9
        """
        if not _TEXT.fullmatch(text):
            raise InvalidSpec(f"{text!r} is not a list of ranges such as 0-7,16-23")
        ends = (part.split("-") for part in text.split(","))
        return cls(tuple((int(part[0]), int(part[-1])) for part in ends))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Ranges:
        """The shortest writing of *numbers*, which must rise.

        >>> str(Ranges.of([0, 1, 2, 5]))
        '0-2,5'
        """
        spans: list[tuple[int, int]] = []
        for number in numbers:
            if spans and number == spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], number)
            else:
                spans.append((number, number))
        return cls(tuple(spans))

    def __str__(self) -> str:
        return ",".join(
            f"{first}" if first == last else f"{first}-{last}"
            for first, last in self.spans
        )

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.spans)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.spans:
            yield from range(first, last + 1)


ENDS = ("embedding", "final_norm", "head")
SHARDINGS = ("megatron", "megatron-sp")
CP_KINDS = ("ring", "all-gather", "ulysses", "rsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The device mesh of a stage: named axes over explicit ranks.

    The order of the axes is Megatron's: tp varies fastest, then cp, then data
    parallelism. The same ranks are refolded as `edp × ep × etp` for experts.
    """

    ranks: Ranges
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1

    def __post_init__(self) -> None:
        for name in ("dp_replicate", "dp_shard", "cp", "tp", "ep", "etp"):
            if getattr(self, name) < 1:
                raise InvalidSpec(f"{name}={getattr(self, name)} must be at least 1")
        if self.size != len(self.ranks):
            raise InvalidSpec(
                f"dp_replicate {self.dp_replicate} × dp_shard {self.dp_shard} × cp "
                f"{self.cp} × tp {self.tp} = {self.size} does not fill the "
                f"{len(self.ranks)} ranks {self.ranks}"
            )
        if self.size % (self.ep * self.etp):
            raise InvalidSpec(
                f"ep {self.ep} × etp {self.etp} does not divide {self.size} ranks"
            )

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def shards(self) -> int:
        """Ranks that ZeRO shards over: those of context parallelism hold the same
        weights."""
        return self.dp_shard * self.cp

    @property
    def size(self) -> int:
        return self.dp * self.cp * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """One layer's ZeRO level, sharding and retention.

    The preset `sharding` says how the layer is given its input and hands its output on,
    and how its operators are split over tp, unless `modules` do, one for each.
    """

    sharding: str = "megatron-sp"
    zero: int = 1
    retention: Retention = field(default_factory=Retention)
    modules: tuple[ModuleSharding, ...] = ()

    def __post_init__(self) -> None:
        if self.sharding not in SHARDINGS:
            raise InvalidSpec(
                f"sharding {self.sharding!r} is not one of {', '.join(SHARDINGS)}"
            )
        if self.zero not in (0, 1, 2, 3):
            raise InvalidSpec(f"zero={self.zero} is not one of 0, 1, 2, 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A virtual stage: its layers by name, in model order, and who holds it."""

    layers: tuple[str, ...]
    plans: tuple[LayerPlan, ...]  # one a layer
    mesh: Mesh
    held_by: tuple[int, ...]  # pipeline ranks, one a copy; the mesh is the first's

    def __post_init__(self) -> None:
        if not self.layers or len(self.layers) != len(self.plans):
            raise InvalidSpec(
                f"a stage has one plan for each of its layers (at least one), got "
                f"{len(self.layers)} layers and {len(self.plans)} plans"
            )

    @property
    def body(self) -> int:
        """How many numbered layers it holds."""
        return sum(name.isdigit() for name in self.layers)

    def document(self, shardings: Sequence[tuple[ModuleSharding, ...]]) -> Document:
        """A member of `stages`; its plans name *shardings* by number."""
        mesh = self.mesh
        return {
            "layers": layer_text(self.layers),
            "held_by": list(self.held_by),
            "mesh": {
                name: getattr(mesh, name)
                for name in ("dp_replicate", "dp_shard", "cp", "tp")
            },
            "ep": mesh.ep,
            "etp": mesh.etp,
            "ranks": str(mesh.ranks),
            "layer_plans": [
                {
                    "layers": layer_text(names),
                    "sharding": plan.sharding,
                    "zero": plan.zero,
                    **(
                        {"modules": shardings.index(plan.modules)}
                        if plan.modules
                        else {}
                    ),
                    "retention": plan.retention.document(),
                }
                for plan, names in self._runs()
            ],
        }

    def _runs(self) -> Iterator[tuple[LayerPlan, tuple[str, ...]]]:
        """Equal neighbours together."""
        pairs = zip(self.plans, self.layers, strict=True)
        for plan, group in groupby(pairs, key=lambda pair: pair[0]):
            yield plan, tuple(name for _, name in group)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The whole plan. `micro_batches` is m, one for the whole pipeline."""

    stages: tuple[Stage, ...]
    schedule: str
    virtual_stages: int
    micro_batches: int
    global_batch: int
    precision_name: str = "bf16"
    gradient_format: str = "fp32"
    flash_attention: bool = True
    cp_kind: str = "ring"
    offload: Offload = NOTHING  # of states; of activations, the layers' retention
    zero_plus: ZeroPlus = PLAIN

    def __post_init__(self) -> None:
        if not self.stages:
            raise InvalidSpec("a layout has at least one stage")
        if self.micro_batches < 1 or self.virtual_stages < 1:
            raise InvalidSpec("micro_batches and virtual_stages must be at least 1")
        if self.cp_kind not in CP_KINDS:
            raise InvalidSpec(
                f"cp_kind {self.cp_kind!r} is not one of {', '.join(CP_KINDS)}"
            )
        if self.offload.of_activations is not None:
            raise InvalidSpec(
                "a layout treats activations layer by layer, by their retention; its "
                f"own offload is of states, not {self.offload}"
            )
        spans = sorted({one for s in self.stages for one in s.mesh.ranks.spans})
        for before, after in pairwise(spans):
            if after[0] <= before[1]:
                raise InvalidSpec(
                    f"ranks {before[0]}-{before[1]} and {after[0]}-{after[1]} overlap: "
                    "two stages hold the same ranks or none in common"
                )
        for stage in self.stages:
            if self.global_batch % (self.micro_batches * stage.mesh.dp):
                raise InvalidSpec(
                    f"global batch {self.global_batch} is not a multiple of "
                    f"{self.micro_batches} micro-batches × dp {stage.mesh.dp}"
                )

    def sharded(self, modules: Mapping[str, tuple[ModuleSharding, ...]]) -> Layout:
        """The same, but that the layers named have these *modules*; equal plans are one
        object."""
        plans: dict[LayerPlan, LayerPlan] = {}

        def told(name: str, plan: LayerPlan) -> LayerPlan:
            found = replace(plan, modules=modules[name]) if name in modules else plan
            return plans.setdefault(found, found)

        return replace(
            self,
            stages=tuple(
                replace(one, plans=tuple(map(told, one.layers, one.plans)))
                for one in self.stages
            ),
        )

    @cached_property
    def precision(self) -> Precision:
        return precision(self.precision_name, gradient=self.gradient_format)

    @cached_property
    def pp(self) -> int:
        """Pipeline ranks."""
        return 1 + max(rank for stage in self.stages for rank in stage.held_by)

    @cached_property
    def gpus(self) -> int:
        """Ranks of all stages; two stages hold the same ones or none in common."""
        held = {stage.mesh.ranks for stage in self.stages}
        return sum(len(ranks) for ranks in held)

    @cached_property
    def plans(self) -> tuple[LayerPlan, ...]:
        """The layers' plans, one that several layers share once."""
        found: dict[int, LayerPlan] = {}
        for stage in self.stages:
            found.update(zip(map(id, stage.plans), stage.plans, strict=True))
        return tuple(found.values())

    @cached_property
    def away(self) -> Offload:
        """States that are offloaded, and the tier of all that is, activations too.

        Raises InvalidSpec if there is more than one.
        """
        tiers = {tier for plan in self.plans for tier in plan.retention.tiers}
        tiers |= {self.offload.tier} if self.offload.states else set()
        if len(tiers) > 1:
            raise InvalidSpec(
                f"offloading to {' and to '.join(sorted(tiers))} at once is not "
                "priced; choose one of them"
            )
        return replace(self.offload, tier=tiers.pop()) if tiers else self.offload

    @cached_property
    def away_share(self) -> float:
        """The largest share of any saved tensor that is offloaded."""
        treated = (one for p in self.plans for one in p.retention.tensors.values())
        shares = (one.ratio for one in treated if one.action is Action.OFFLOAD)
        return max(shares, default=0.0)

    @cached_property
    def compression(self) -> str:
        """In how many bits saved tensors are kept, as `Offload.compress` says it, where
        all that are compressed are alike."""
        treated = (one for p in self.plans for one in p.retention.tensors.values())
        packed = {one for one in treated if one.action is Action.COMPRESS}
        if len(packed) != 1:
            return AS_IT_IS
        (one,) = packed
        return f"{one.bits}-running" if one.running else str(one.bits)

    def micro_batch(self, stage: Stage) -> int:
        """Sequences that one data-parallel rank of *stage* has in a micro-batch."""
        return self.global_batch // (self.micro_batches * stage.mesh.dp)

    @cached_property
    def summary(self) -> dict[str, int | str | None]:
        """One number a dimension, None where stages or layers differ."""
        meshes = [stage.mesh for stage in self.stages]
        zero = _common(plan.zero for plan in self.plans)
        return {
            "tp": _common(mesh.tp for mesh in meshes),
            "pp": self.pp,
            "dp": _common(mesh.dp for mesh in meshes),
            "cp": _common(mesh.cp for mesh in meshes),
            "ep": _common(mesh.ep for mesh in meshes),
            "zero": zero,
            "zero_group": _common(mesh.dp_shard for mesh in meshes),
            "zero_ranks": 1 if zero == 0 else _common(mesh.shards for mesh in meshes),
            "micro_batch": _common(self.micro_batch(stage) for stage in self.stages),
        }

    def to_dict(self) -> Document:
        """The `layout` member of a layout file and of what the commands print with
        `--json`; plain values of JSON."""
        plans = (plan for stage in self.stages for plan in stage.plans)
        sets = list(dict.fromkeys(plan.modules for plan in plans if plan.modules))
        shardings = [sharding_documents(one) for one in sets]
        return {
            "schedule": self.schedule,
            "virtual_stages": self.virtual_stages,
            "micro_batches": self.micro_batches,
            "precision": self.precision_name,
            "gradient_format": self.gradient_format,
            "flash_attention": self.flash_attention,
            "cp_kind": self.cp_kind,
            **self.offload.document(),
            **self.zero_plus.document(),
            "summary": self.summary,
            **({"shardings": shardings} if shardings else {}),
            "stages": [stage.document(sets) for stage in self.stages],
        }

    def _repr_html_(self) -> str:
        """A row for each stage, for a notebook."""
        return html_table(
            f"{self.gpus} devices, {self.schedule}, {self.micro_batches} micro-batches "
            f"of a global batch of {self.global_batch:,}, {self.precision_name}",
            [
                (
                    str(number),
                    layer_text(stage.layers),
                    str(stage.mesh.ranks),
                    str(stage.mesh.tp),
                    str(stage.mesh.dp),
                    str(stage.mesh.cp),
                    str(stage.mesh.ep),
                    ", ".join(dict.fromkeys(str(plan.zero) for plan in stage.plans)),
                )
                for number, stage in enumerate(self.stages)
            ],
            heads=("stage", "layers", "ranks", "tp", "dp", "cp", "ep", "ZeRO"),
        )


def _common(values: Iterable[int]) -> int | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def layer_text(names: tuple[str, ...]) -> str:
    """Layers as written in the file.

    >>> layer_text(("embedding", "0", "1", "2"))
    'embedding,0-2'
    """
    parts: list[str] = []
    for numbered, group in groupby(names, key=str.isdigit):
        members = list(group)
        parts += [str(Ranges.of(map(int, members)))] if numbered else members
    return ",".join(parts)


def parse_layers(text: str) -> tuple[str, ...]:
    """The names that `layer_text` wrote; raises InvalidSpec."""
    names: list[str] = []
    for part in text.split(","):
        if part in ENDS:
            names.append(part)
            continue
        spans = Ranges.parse(part)
        if len(spans) > 10**5:
            raise InvalidSpec(f"layers {part!r} are more than 100,000")
        names.extend(str(number) for number in spans)
    return tuple(names)
