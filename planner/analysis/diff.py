"""`plan --diff A B`: what differs between two layouts, and what each difference costs.

The way from A to B changes one dimension at a time, in the order of `DIMENSIONS`: first
how the GPUs are split, then the pipeline, then what each rank holds. Data parallelism
fills up what tensor, context and pipeline parallelism leave. A change that is not
legal yet waits for the next; where none is legal alone, as few as can be go together.
Each layout on the way is simulated, so the changes add up to the whole difference. In
another order they would share it out otherwise.

The difference between two layouts: a table, and a JSON document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.layout import AUTO, Layout, Uniform, nearly_uniform_of, spell_out
from costmodel.machine import Machine
from costmodel.report import headline, layout_words
from costmodel.simulation import Estimate, estimate, spelled_out
from costmodel.support import is_local, violations
from planner.analysis.explain import WORDS
from planner.problem import away_words, retention_words
from profiles.errors import Contradiction, MeshwrightError
from profiles.models import Job
from profiles.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group

DIMENSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "GPUs": ("gpus",),
    "tensor parallelism": ("tp",),
    "context parallelism": ("cp",),
    "pipeline parallelism": ("pp",),
    "expert parallelism": ("ep", "etp"),
    "sequence parallelism": ("sequence_parallel",),
    "way of context parallelism": ("cp_kind",),
    "schedule": ("schedule", "virtual_stages"),
    "layers of each stage": ("layers_per_stage",),
    "micro-batch": ("micro_batch",),
    "ZeRO": ("zero", "zero_group"),
    "ZeRO++": ("zero_plus",),
    "recompute": ("recompute", "recompute_layers"),
    "flash attention": ("flash_attention",),
    "precision": ("precision", "gradient_format"),
    "offload": ("offload",),
}
OPERATORS: Final = "sharding of operators"
# Of layouts that no dozen numbers say: what may be unlike, and who has it.
PARTS: Final[Mapping[str, Callable[[Layout], Any]]] = {
    "GPUs": lambda layout: layout.gpus,
    "pipeline parallelism": lambda layout: layout.pp,
    "layers of each stage": lambda layout: [one.layers for one in layout.stages],
    "mesh of each stage": lambda layout: [one.mesh for one in layout.stages],
    "schedule": lambda layout: (layout.schedule, layout.virtual_stages),
    "micro-batch": lambda layout: layout.micro_batches,
    "sequence parallelism": lambda layout: _of_layers(layout, "sharding"),
    OPERATORS: lambda layout: _of_layers(layout, "modules"),
    "ZeRO": lambda layout: _of_layers(layout, "zero"),
    "ZeRO++": lambda layout: layout.zero_plus,
    "recompute": lambda layout: _of_layers(layout, "retention"),
    "way of context parallelism": lambda layout: layout.cp_kind,
    "flash attention": lambda layout: layout.flash_attention,
    "precision": lambda layout: (layout.precision_name, layout.gradient_format),
    "offload": lambda layout: layout.offload,
}


Pair = tuple[Uniform, Uniform]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of the way: the dimensions that change, and what they change."""

    dimensions: tuple[str, ...]
    before: Estimate
    after: Estimate
    choices: Pair | None = None  # None: not all in numbers
    words: tuple[str, str] | None = None  # in place of those of the layouts

    @property
    def step_time_s(self) -> float:
        """Seconds that the step takes longer."""
        return self.after.step_time_s - self.before.step_time_s

    @property
    def peak_memory_bytes(self) -> float:
        """Bytes that the fullest device holds more."""
        return self.after.peak_memory_bytes - self.before.peak_memory_bytes

    @property
    def parts_s(self) -> dict[str, float]:
        """By how many seconds each part of the step grows; those that change."""
        before, after = self.before.breakdown_s, self.after.breakdown_s
        grown = {name: after[name] - before[name] for name in after}
        return {name: more for name, more in grown.items() if more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two layouts of one job, and the changes that lead from one to the other."""

    a: Estimate
    b: Estimate
    changes: tuple[Change, ...]


def difference(job: Job, on: Machine, a: Layout, b: Layout) -> Difference:
    """What changes from *a* to *b*, priced by simulation change by change.

    Raises Contradiction for layouts of another job or cluster.
    """
    first, last = (estimate(job, on.cluster, one, on=on) for one in (a, b))
    ends = [nearly_uniform_of(one, job.graph) for one in (a, b)]
    goal, changes = ends[1], list[Change]()

    def to(after: Estimate, *names: str, by: Pair | None = None) -> None:
        before = changes[-1].after if changes else first
        changes.append(Change(dimensions=names, before=before, after=after, choices=by))

    here = ends[0]
    if here is not None and goal is not None and here != goal:
        if own_operators(a):
            to(_priced(job, on, here), OPERATORS)
        for dimensions, choice in way(here, goal, job, on):
            done = choice == goal and not own_operators(b)
            after = last if done else _priced(job, on, choice)
            to(after, *dimensions, by=(here, choice))
            here = choice
        if own_operators(b):
            to(last, OPERATORS)
    elif a != b:
        to(last, *unlike(a, b))
    return Difference(a=first, b=last, changes=tuple(changes))


def own_operators(layout: Layout) -> bool:
    """Whether operators of *layout* are sharded otherwise than by the preset."""
    return any(plan.modules for plan in layout.plans)


def unlike(a: Layout, b: Layout) -> tuple[str, ...]:
    """What of two layouts is not the same, by name."""
    return tuple(name for name, part in PARTS.items() if part(a) != part(b))


def _of_layers(layout: Layout, *names: str) -> dict[str, tuple[Any, ...]]:
    """What the plan of each layer says, wherever the layer is."""
    return {
        layer: tuple(getattr(plan, name) for name in names)
        for stage in layout.stages
        for layer, plan in zip(stage.layers, stage.plans, strict=True)
    }


def way(
    a: Uniform, b: Uniform, job: Job, on: Machine
) -> Iterator[tuple[tuple[str, ...], Uniform]]:
    """Legal layouts from *a* to *b*, and which dimensions changed to get to each."""
    from_a, from_b = _values(a), _values(b)
    left = [name for name in DIMENSIONS if _differs(name, from_a, from_b)]
    here, choice = from_a, a
    while left:
        names, there, found = _next(left, here, from_b, b, job, on)
        left = [name for name in left if name not in names]
        if found != choice or not left:
            yield names, found
        here, choice = there, found


def _next(
    left: list[str],
    here: dict[str, Any],
    goal: dict[str, Any],
    b: Uniform,
    job: Job,
    on: Machine,
) -> tuple[tuple[str, ...], dict[str, Any], Uniform]:
    """The fewest changes, earliest first, that lead to a legal layout."""
    for count in range(1, len(left)):
        for names in combinations(left, count):
            there = {**here, **{f: goal[f] for name in names for f in DIMENSIONS[name]}}
            found = _uniform(there)
            if found is not None and _legal(found, job, on):
                return names, there, found
    return tuple(left), goal, b


def _values(choice: Uniform) -> dict[str, Any]:
    """A choice by field, dp as the number of GPUs. A shard over all of dp is None, and
    stays all of it where dp changes."""
    values = {name: getattr(choice, name) for name in _FIELDS}
    values["gpus"] = choice.gpus
    values["zero_group"] = (
        None if choice.zero and choice.zero_group == choice.dp else values["zero_group"]
    )
    return values


_FIELDS: Final = tuple(
    name for names in DIMENSIONS.values() for name in names if name != "gpus"
)


def _uniform(values: dict[str, Any]) -> Uniform | None:
    """The choice that *values* mean, None if they do not divide the GPUs. What is one
    or off makes what hangs on it off too."""
    rest = {name: value for name, value in values.items() if name != "gpus"}
    inner = rest["tp"] * rest["pp"] * rest["cp"]
    dp, remainder = divmod(values["gpus"], inner)
    if remainder or not dp:
        return None
    if rest["zero_group"] is None:
        rest["zero_group"] = dp
    if not rest["zero"]:
        rest["zero_group"] = 1
    if rest["tp"] == 1:
        rest["sequence_parallel"] = False
    if rest["pp"] == 1:
        rest["schedule"], rest["virtual_stages"] = "1f1b", 1
    cuts = rest["layers_per_stage"]
    if cuts is not None and len(cuts) != rest["pp"] * rest["virtual_stages"]:
        rest["layers_per_stage"] = None
    return Uniform(dp=dp, **rest)


def _differs(name: str, a: dict[str, Any], b: dict[str, Any]) -> bool:
    return any(a[field] != b[field] for field in DIMENSIONS[name])


def _legal(choice: Uniform, job: Job, on: Machine) -> bool:
    if list(violations(choice, job, on.cluster)):
        return False
    plain = replace(choice, recompute="none") if choice.recompute == AUTO else choice
    try:
        spell_out(plain, job.graph, job.global_batch)
    except MeshwrightError:
        return False
    return True


def _priced(job: Job, on: Machine, choice: Uniform) -> Estimate:
    here = is_local(on.cluster)
    layout = spelled_out(choice, job, on, executable=here)
    return estimate(job, on.cluster, layout, on=on)


def require_alike(jobs: tuple[Job, Job], clusters: tuple[Any, Any] | None) -> None:
    """Raise Contradiction for layouts of unlike jobs, or on unlike clusters."""
    a, b = jobs
    for name in ("model", "spec", "seq_len", "global_batch", "optimizer"):
        one, other = getattr(a, name), getattr(b, name)
        if one != other:
            said = f"{one} and {other}" if name != "spec" else "another shape"
            raise Contradiction(
                f"--diff compares two layouts of one job, and these differ in "
                f"{name.replace('_', '-')}: {said}; plan both for the same job"
            )
    if clusters is not None and clusters[0] != clusters[1]:
        raise Contradiction(
            "--diff: the two layouts are for different clusters; name the one to price "
            "both on with --cluster"
        )


MOST_PARTS = 2
NOT_FITTING = " ✗"


def difference_document(found: Difference, files: tuple[Path, Path]) -> dict[str, Any]:
    """What `plan --diff A B --json` prints."""
    return {
        "a": {"file": str(files[0]), **_end(found.a)},
        "b": {"file": str(files[1]), **_end(found.b)},
        "changes": [_change(change) for change in found.changes],
        "step_time_s": found.b.step_time_s - found.a.step_time_s,
        "peak_memory_bytes": found.b.peak_memory_bytes - found.a.peak_memory_bytes,
    }


def _end(estimate: Estimate) -> dict[str, Any]:
    return {
        "layout": estimate.layout.to_dict(),
        "estimate": estimate.document(),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "dimensions": list(change.dimensions),
        "from": changed_words(change)[0],
        "to": changed_words(change)[1],
        "step_time_s": change.step_time_s,
        "peak_memory_bytes": change.peak_memory_bytes,
        "breakdown_s": change.parts_s,
        "fits": change.after.fits,
    }


def changed_words(change: Change) -> tuple[str, str]:
    """What the changed dimensions are before and after."""
    if change.words is not None:
        return change.words
    if change.choices is None:
        a, b = change.before.layout, change.after.layout
        if change.dimensions == (OPERATORS,):
            return _sharded(a), _sharded(b)
        ways = (layout_words, retention_words, away_words)
        told = next((way for way in ways if way(a) != way(b)), layout_words)
        return told(a), told(b)
    old, new = change.choices
    names = [
        field
        for dimension in change.dimensions
        for field in DIMENSIONS[dimension]
        if field != "gpus"
    ]
    names = [name for name in names if getattr(old, name) != getattr(new, name)]
    if old.dp != new.dp:
        names.append("dp")
    return _listed(old, names), _listed(new, names)


def _sharded(layout: Layout) -> str:
    return "their own" if own_operators(layout) else "the preset's"


def _listed(choice: Uniform, names: list[str]) -> str:
    return " · ".join(_said(name, getattr(choice, name)) for name in names)


def _said(name: str, value: object) -> str:
    if isinstance(value, bool):
        value = "on" if value else "off"
    called = "ZeRO++" if name == "zero_plus" else name.replace("_", "-")
    return f"{called} {value}"


def difference_view(found: Difference) -> Group:
    """Both layouts, and one line a change from the first to the second."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("change", overflow="fold")
    for name in ("step", "more", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("because", overflow="fold")
    table.add_row("A", format_seconds(found.a.step_time_s), "", _held(found.a), "")
    for change in found.changes:
        before, after = changed_words(change)
        table.add_row(
            f"{', '.join(change.dimensions)}: {before} → {after}",
            format_seconds(change.after.step_time_s),
            _more(change.step_time_s, found.a.step_time_s),
            _held(change.after),
            _because(change),
        )
    whole = found.b.step_time_s - found.a.step_time_s
    table.add_row(
        "B",
        format_seconds(found.b.step_time_s),
        _more(whole, found.a.step_time_s),
        _held(found.b),
        "" if found.changes else "the same layout",
        style="bold",
    )
    if not all(change.after.fits for change in found.changes):
        table.caption, table.caption_justify = f"{NOT_FITTING} does not fit", "left"
    ends = [
        Text(f"{name}  {layout_words(one.layout)}: {dict(headline(one))['step time']}")
        for name, one in (("A", found.a), ("B", found.b))
    ]
    return Group(*ends, Text(), table)


def _held(estimate: Estimate) -> str:
    mark = "" if estimate.fits else NOT_FITTING
    return f"{format_bytes(estimate.peak_memory_bytes)}{mark}"


def _more(seconds: float, of_s: float) -> str:
    return f"{seconds / of_s:+.1%}"


def _because(change: Change) -> str:
    """The parts of the step that change most, in per cent of the step before."""
    parts = sorted(change.parts_s.items(), key=lambda item: -abs(item[1]))
    step_s = change.before.step_time_s
    return ", ".join(
        f"{WORDS.get(name, name)} {more / step_s:+.1%}"
        for name, more in parts[:MOST_PARTS]
        if abs(more) >= 0.0005 * step_s
    )
