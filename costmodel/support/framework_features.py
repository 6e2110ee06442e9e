"""What each framework can run, as data: `costmodel/data/capabilities.json`.

    (framework, fact) → the values that it has, with their source
    (framework, combination) → never, with the reason

Facts are those of the support table (`costmodel.support.features`), which says what
our own runtime carries out, and three that are about the granularity of layers
(`costmodel.support.framework_features`). What a framework does not say it has from its
`base`; the base of all has next to nothing. Of our own software nothing is said here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from costmodel.layout import (
    LATER,
    Layout,
    Retention,
    Stage,
    Uniform,
    body_presets,
    operator_of,
    split_layers,
)
from costmodel.support.features import (
    BY_NAME,
    SEGMENTS,
    Combination,
    Fact,
    Facts,
    facts,
    holds,
    treatment,
)
from profiles.models import Job

TABLE: Final = Path(__file__).parents[1] / "data" / "capabilities.json"
BASE: Final = "any"  # of all: no framework
# The fields of a `Uniform` that decide a fact, and when its mechanism is not used. What
# is not here is the same for all candidates of a search.
_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "tp": ("tp",),
    "pp": ("pp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "etp": ("etp",),
    "zero": ("zero", "dp", "cp"),
    "zero group": ("zero", "zero_group", "dp", "cp"),
    "sequence parallel": ("sequence_parallel", "tp"),
    "cp kind": ("cp_kind", "cp"),
    "schedule": ("schedule", "pp"),
    "layers of stages": ("pp", "virtual_stages"),
    "recompute": ("recompute",),
    "recompute in": ("recompute",),
    "recomputed operators": ("recompute",),
}
_UNUSED: Final[Mapping[str, str]] = {
    "zero": "replicas",
    "zero group": "replicas",
    "sequence parallel": "tp",
    "cp kind": "cp",
    "schedule": "pp",
    "layers of stages": "pp",
}
# What is not said of a mechanism where all of it is missing.
_WHOLE: Final[Mapping[str, str]] = {
    "cp kind": "cp",
    "schedule": "pp",
    "layers of stages": "pp",
    "sequence parallel": "tp",
    "recomputed operators": "recompute",
    "states on": "states",
}
_ALWAYS: Final = ("none",)  # nobody needs to have it
_DEGREES: Final = ("tp", "pp", "dp", "cp", "ep", "etp")
_WORDS: Final[Mapping[str, tuple[str, str]]] = {  # what it lacks, what it has
    "tp": ("tensor parallelism", "tp {}"),
    "pp": ("pipeline parallelism", "pp {}"),
    "cp": ("context parallelism", "cp {}"),
    "ep": ("expert parallelism", "ep {}"),
    "etp": ("tensor parallelism of experts", "etp {}"),
    "zero": ("ZeRO-{}", "ZeRO-{}"),
    "zero group": ("ZeRO over a part of data parallelism", "it over {} of it"),
    "sequence parallel": ("{}", "tensor parallelism {} it"),
    "cp kind": ("{} context parallelism", "{}"),
    "schedule": ("{} schedule", "{}"),
    "layers of stages": ("stages of {} layers", "{}"),
    "recompute": ("recompute {}", "{}"),
    "recompute in": ("recompute in {}", "it in {}"),
    "recomputed operators": ("recompute of {}", "that of {}"),
    "saved tensors": ("saved tensors {}", "them {}"),
    "states": ("offloading of {}", "states {}"),
    "states on": ("states on a {}", "them on the {}"),
    "operators": ("shardings {}", "them {}"),
    "stages": ("stages that are {}", "{}"),
    "ZeRO++": ("ZeRO++", "{}"),
    "precision": ("{} training", "{}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Has:
    """The values of a fact that a framework has, and who says so."""

    values: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Never:
    """Facts that a framework does not have together, and why."""

    when: Mapping[str, tuple[str, ...]]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What one framework has, with what it has from its base."""

    name: str
    has: Mapping[str, Has]
    base: str | None = None
    never: tuple[Never, ...] = ()

    def offers(self, fact: str, value: str) -> bool:
        """Whether it has this *value* of a *fact*, whatever is beside it."""
        return value in self.has[fact].values

    def lacks(
        self, asked: Uniform | Layout, job: Job, about: Collection[str] | None = None
    ) -> list[str]:
        """What of *asked* it does not have, a sentence each; of facts *about* which
        something is known, or of all.

        >>> from profiles.models.catalog import model
        >>> job = Job(model="gpt-tiny", spec=model("gpt-tiny").spec, seq_len=256,
        ...           global_batch=8)
        >>> capabilities("deepspeed").lacks(
        ...     Uniform(pp=2, schedule="interleaved", virtual_stages=2), job)
        ['deepspeed has no interleaved schedule; it has 1f1b']
        """
        found = _facts(asked, job)
        known = self.has.keys() if about is None else about
        missing = [
            fact
            for fact in self.has
            if fact in known and not _held(found, fact, self.has[fact].values)
        ]
        told = [fact for fact in missing if _WHOLE.get(fact) not in missing]
        return [self._without(fact, found[fact]) for fact in told] + [
            f"{self.name} does not run {_shown(found, rule.when)}: {rule.reason}"
            for rule in self.never
            if rule.when.keys() <= set(known).difference(missing)
            and holds(rule.when, found)
        ]

    def _without(self, fact: str, found: Fact) -> str:
        lacking, having = _WORDS[fact]
        values = self.has[fact].values
        more = sorted(set(found.value.split(",")).difference(values))
        shown = ", ".join(more) if "," in found.value else found.shown
        offered = [one for one in values if one not in _ALWAYS] or ["none"]
        if fact == "sequence parallel":
            split = "sequence parallelism"
            lacking = {
                "yes": split,
                "no": f"tensor parallelism without {split}",
                "mixed": f"{split} in some layers alone",
            }[shown]
            offered = [{"yes": "with", "no": "without"}[one] for one in values]
        words = having.format(" or ".join(offered))
        return f"{self.name} has no {lacking.format(shown)}; it has {words}"


@dataclass(kw_only=True)
class Filter:
    """Which values of the fields of *plain*, a `Uniform`, leave something that a
    framework runs; asked for the same, it remembers."""

    of: Capabilities
    job: Job
    plain: Uniform
    _known: dict[tuple[tuple[str, Any], ...], bool] = field(default_factory=dict)

    def keeps(self, **values: Any) -> bool:
        """Whether it has *values*, as far as they alone decide: of facts that hang on
        other fields too nothing is asked."""
        stages = {name: values.get(name) for name in ("pp", "virtual_stages")}
        if None not in stages.values() and not self._asked(
            stages, ["layers of stages"]
        ):
            return False
        coarse = _coarse(values)
        return self._asked(coarse, known_of(coarse) - {"layers of stages"})

    def _asked(self, values: Mapping[str, Any], about: Collection[str]) -> bool:
        key = tuple(sorted(values.items()))
        if key not in self._known:
            asked = replace(self.plain, **values)
            self._known[key] = not self.of.lacks(asked, self.job, set(about))
        return self._known[key]


def known_of(fields: Iterable[str]) -> Set[str]:
    """The facts that so many *fields* of a `Uniform` decide."""
    given = set(fields)
    rest = capabilities(BASE).has.keys() - _OF.keys()
    return rest | {fact for fact, needed in _OF.items() if given.issuperset(needed)}


@lru_cache(maxsize=1)
def _table() -> dict[str, Capabilities]:
    read = msgspec.json.decode(TABLE.read_bytes(), type=dict[str, list[Capabilities]])
    return {item.name: item for item in read["frameworks"]}


def own_capabilities() -> tuple[Capabilities, ...]:
    """What each framework says of itself, without its base."""
    return tuple(_table().values())


@lru_cache(maxsize=64)
def capabilities(name: str) -> Capabilities:
    """What the framework *name* has; raises KeyError for ours, of which `support`
    speaks."""
    own = _table()[name]
    if own.base is None:
        return own
    base = capabilities(own.base)
    return replace(own, has={**base.has, **own.has}, never=base.never + own.never)


def is_described(name: str) -> bool:
    """Whether *name* is a framework of which it is known here what it can run."""
    return name in _table() and name != BASE


def framework_warnings(
    name: str | None, asked: Uniform | Layout, job: Job
) -> tuple[str, ...]:
    """What to say beside a price under the software *name*, where that was asked for,
    of what it could not run."""
    if name is None or not is_described(name):
        return ()
    return tuple(capabilities(name).lacks(asked, job))


def _facts(asked: Uniform | Layout, job: Job) -> Facts:
    """Those of the support table, and of granularity. ZeRO's level counts for one rank
    too where it was asked for: from 2 on, or with states away (the host is one more).
    """
    used = Combination.of(asked, job)
    found = {**facts(used, job), **granularity(asked, job)}
    if found["replicas"].value == "1":
        level = max(used.zero)
        counts = level > 1 or used.states != "on the device"
        words = str(level) if counts else "none"
        found["zero"] = Fact(words, words)
    return found


def _held(found: Facts, fact: str, values: Collection[str]) -> bool:
    """Whether what is *found* of a *fact* is among *values*, or is not used."""
    unless = _UNUSED.get(fact)
    if unless is not None and found[unless].value == "1":
        return True
    return set(found[fact].value.split(",")) <= {*values, *_ALWAYS}


def _shown(found: Facts, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {found[name].shown}" for name in names)


def _coarse(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values*, of degrees no more than whether they are 1."""
    coarse = dict(values)
    if "zero_group" in values:
        part = values["zero_group"] < values.get("dp", 1)
        coarse["zero_group"] = 1 if part else min(values.get("dp", 1), 2)
    for name in _DEGREES:
        if name in values:
            coarse[name] = min(values[name], 2)
    coarse.pop("virtual_stages", None)
    return coarse


EQUAL, BUT_ENDS, UNEQUAL = "equal", "equal but at the ends", "unequal"
ALL, ALIKE = "all layers", "some layers of each stage"
BY_STAGE = "layers chosen stage by stage"


def granularity(asked: Uniform | Layout, job: Job) -> Facts:
    """`layers of stages`, `recompute in` and `recomputed operators`; the last names
    operators, or none where layers are made again whole or not."""
    found = _of_layout(asked) if isinstance(asked, Layout) else _of_choice(asked, job)
    names = "layers of stages", "recompute in", "recomputed operators"
    return {name: Fact(one, one) for name, one in zip(names, found, strict=True)}


def shared_out(counts: Sequence[int]) -> str:
    """How stages of so many numbered layers are alike.

    >>> shared_out((3, 3)), shared_out((2, 3, 3, 2)), shared_out((2, 3, 4, 3))
    ('equal', 'equal but at the ends', 'unequal')
    """
    if len(set(counts)) == 1:
        return EQUAL
    return BUT_ENDS if len(set(counts[1:-1])) <= 1 else UNEQUAL


def _of_choice(choice: Uniform, job: Job) -> tuple[str, str, str]:
    graph, stages = job.graph, choice.pp * choice.virtual_stages
    even = choice.layers_per_stage
    counts = even or split_layers(graph.body, stages, graph.tail)
    some = choice.recompute_layers
    if choice.recompute in LATER:
        return shared_out(counts), BY_STAGE, "none"
    kinds = body_presets(choice.recompute, graph).values() if some != 0 else ()
    again = any(one.recomputed for one in kinds)
    part = again and some is not None and some < max(counts)
    return shared_out(counts), ALIKE if part else ALL, _named(kinds)


def _of_layout(layout: Layout) -> tuple[str, str, str]:
    own = [_retentions(stage) for stage in layout.stages]
    again = [sum(bool(one.recomputed) for one in stage) for stage in own]
    words = {
        "full" if treatment(one) == SEGMENTS else treatment(one)
        for stage in own
        for one in dict.fromkeys(stage)
        if one.recomputed
    }
    counts = [len(stage) for stage in own]
    alike = all(
        number == min(max(again), count)
        for number, count in zip(again, counts, strict=True)
    )
    where = BY_STAGE
    if not words or (again == counts and len(words) == 1):
        where = ALL
    elif alike and len(words) == 1:
        where = ALIKE
    every = dict.fromkeys(one for stage in own for one in stage)
    return shared_out(counts), where, _named(every)


def _retentions(stage: Stage) -> list[Retention]:
    """Those of its numbered layers."""
    named = zip(stage.layers, stage.plans, strict=True)
    return [plan.retention for name, plan in named if name.isdigit()]


def _named(retentions: Iterable[Retention]) -> str:
    names = {
        operator_of(tensor)
        for one in retentions
        if treatment(one) == BY_NAME
        for tensor in one.recomputed
    }
    return ",".join(sorted(names)) or "none"
