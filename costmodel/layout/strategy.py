"""`Uniform`: a layout whose stages are alike, as the dozen numbers that people say.

`Columns`: many of them as rows of integers, which the planner prices together.
`spell_out` makes the full `Layout` of one; `uniform_of` reads it back where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, islice, pairwise, repeat
from typing import Any, Final

import numpy as np

from costmodel.layout.checkpoint_segments import first_of_each, inner
from costmodel.layout.layout import CP_KINDS, LayerPlan, Layout, Mesh, Ranges, Stage
from costmodel.layout.offload import NOTHING, PLAIN, Offload, ZeroPlus, offloaded
from costmodel.layout.retention import (
    AUTO,
    KEEP_ALL,
    LATER,
    PRESETS,
    Retention,
    body_presets,
)
from costmodel.schedule import copies_held, schedule_called
from profiles.arrays import Array
from profiles.errors import InvalidSpec, MeshwrightError
from profiles.models import Block, ModelGraph

# What a layout and a `Uniform` say in the same words.
_OF_LAYOUT: Final = (
    *("schedule", "virtual_stages", "cp_kind", "flash_attention"),
    *("gradient_format", "zero_plus"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """One candidate: degrees, micro-batch, schedule, ZeRO and retention preset."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    zero: int = 1
    zero_group: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    recompute_layers: int | None = None  # the first K of each stage; None: all
    cp_kind: str = "ring"
    flash_attention: bool = True
    precision: str = "bf16"
    gradient_format: str = "fp32"
    offload: Offload = NOTHING
    zero_plus: ZeroPlus = PLAIN
    layers_per_stage: tuple[int, ...] | None = None  # None: as even as can be

    @classmethod
    def of_stage(cls, layout: Layout, stage: Stage) -> Uniform:
        """What *layout* is as a whole, and *stage* of it; its first layer stands for
        all. What is recomputed and offloaded it does not say."""
        plan, mesh = stage.plans[0], stage.mesh
        shared: dict[str, Any] = {name: getattr(layout, name) for name in _OF_LAYOUT}
        return cls(
            **{name: getattr(mesh, name) for name in ("tp", "dp", "cp", "ep", "etp")},
            **shared,
            pp=layout.pp,
            micro_batch=layout.micro_batch(stage),
            zero=plan.zero,
            zero_group=mesh.dp_shard,
            sequence_parallel=plan.sharding == "megatron-sp",
            precision=layout.precision_name,
        )

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp * self.cp

    def micro_batches(self, global_batch: int) -> int:
        """How many micro-batches a step has; raises InvalidSpec if not whole."""
        size = self.micro_batch * self.dp
        if global_batch % size:
            raise InvalidSpec(
                f"global batch {global_batch} is not a multiple of micro-batch "
                f"{self.micro_batch} × dp {self.dp} = {size}"
            )
        return global_batch // size


def split_layers(body: int, stages: int, tail: int = 0) -> tuple[int, ...]:
    """Numbered layers per virtual stage: as even as can be, the ends lighter.

    The last stage also has the head and the first the embedding, so what does not
    divide goes to the middle, latest stages first (they hold fewer micro-batches). A
    head that is as much work as *tail* layers takes their place, as far as a layer, or
    at least the head, is left. With as many stages as layers and ends together, the
    ends stand alone.

    >>> split_layers(10, 4)
    (2, 3, 3, 2)
    >>> split_layers(13, 4, tail=3)
    (4, 4, 4, 1)
    >>> split_layers(5, 4, tail=3)
    (1, 2, 2, 0)
    """
    if not 1 <= stages <= body + 2:
        raise InvalidSpec(
            f"{stages} virtual stages need at least as many layers, the model has "
            f"{body}, and the ends; choose pp × virtual stages up to {body}"
        )
    tail = replaced(body, stages, tail)
    base, extra = divmod(body + tail, stages)
    counts = [base] * stages
    order = [*range(stages - 2, 0, -1), 0, stages - 1]
    for stage in order[:extra] if stages > 1 else []:
        counts[stage] += 1
    counts[-1] -= tail
    return tuple(counts)


def asked_layers(
    body: int,
    stages: int,
    tail: int = 0,
    *,
    every: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> tuple[int, ...] | None:
    """Numbered layers per virtual stage as they are asked for: of *every* stage, or of
    the *first* and the *last* alone, what is left as even as can be between them; None
    where nothing is asked.

    >>> asked_layers(32, 4, first=8, last=6)
    (8, 9, 9, 6)

    Raises InvalidSpec for counts that are not so many stages, or not all layers.
    """
    if every is not None:
        counts = tuple(map(int, every.split(",")))
        if first not in (None, counts[0]) or last not in (None, counts[-1]):
            raise InvalidSpec(
                f"--stage-layers {every} says how many layers the first and the last "
                "stage have; leave --first-stage-layers and --last-stage-layers out"
            )
    elif first is None and last is None:
        return None
    elif stages == 1:
        counts = tuple({one for one in (first, last) if one is not None})
    else:
        ends = [one for one in (first, last) if one is not None]
        left, others = body - sum(ends), stages - len(ends)
        if left < others - 1 or (others == 0 and left):
            raise InvalidSpec(
                f"{' and '.join(map(str, ends))} layers at the ends leave {left} of "
                f"{body} to {others} other stages; give the ends fewer, or fewer stages"
            )
        middle = (
            _spread(left, others)
            if last is not None
            else (split_layers(left, others, tail))
        )
        before = () if first is None else (first,)
        counts = (*before, *middle, *(() if last is None else (last,)))
    if len(counts) != stages or sum(counts) != body or 0 in counts[1:-1]:
        raise InvalidSpec(
            f"{len(counts)} stages of {', '.join(map(str, counts))} layers, "
            f"{sum(counts)} in all, are not the {body} layers in {stages} stages, of "
            "which those in the middle have one at least; change the numbers, or --pp"
        )
    return counts


def _spread(layers: int, stages: int) -> tuple[int, ...]:
    """As even as can be, what does not divide at the latest: they hold the fewest
    micro-batches."""
    base, extra = divmod(layers, max(stages, 1))
    return (base,) * (stages - extra) + (base + 1,) * extra


def replaced(body: Any, stages: Any, tail: int) -> Any:
    """How many of *tail* layers the last stage can do without; numbers or arrays.

    It has the head alone only where it could not be relieved otherwise.
    """
    found = np.zeros_like(stages)
    for least in (0, 1) if tail else ():
        for fewer in range(1, tail + 1):
            left = (body + fewer) // stages - fewer
            found = np.where((stages > 1) & (left >= least), fewer, found)
    return found if np.ndim(stages) else int(found)


def interleaves(body: int, stages: int) -> bool:
    """Whether *body* layers fall into *stages* chunks that interleaving can use.

    All alike, or all but the ends, which count embedding and head as a layer each
    (Megatron's --account-for-embedding-in-pipeline-split): 126 layers into 64 chunks.

    The ends may stand alone: 94 layers into 96 chunks.

    >>> [interleaves(*cut) for cut in ((40, 8), (126, 64), (42, 8), (94, 96))]
    [True, True, False, True]
    """
    return stages <= body + 2 and (body % stages == 0 or (body + 2) % stages == 0)


def spell_out(choice: Uniform, graph: ModelGraph, global_batch: int) -> Layout:
    """The full layout that *choice* means for a model.

    Raises InvalidSpec if the degrees do not divide.
    """
    if choice.dp % choice.zero_group:
        raise InvalidSpec(
            f"zero_group={choice.zero_group} does not divide dp={choice.dp}"
        )
    total = choice.pp * choice.virtual_stages
    even = partial(split_layers, graph.body, total, graph.tail)
    counts = choice.layers_per_stage or even()
    held = copies_held(choice.schedule, choice.pp, choice.virtual_stages)
    meshes = [_mesh(choice, rank) for rank in range(choice.pp)]
    plans = _plans(choice, graph)
    shared: dict[str, Any] = {name: getattr(choice, name) for name in _OF_LAYOUT}
    return Layout(
        stages=tuple(
            Stage(
                layers=graph.layer_names[first:end],
                plans=plans.between(first, end, choice.recompute_layers),
                mesh=meshes[ranks[0]],
                held_by=ranks,
            )
            for (first, end), ranks in zip(
                stage_cuts(counts), zip(*held, strict=True), strict=True
            )
        ),
        **shared,
        micro_batches=choice.micro_batches(global_batch),
        global_batch=global_batch,
        precision_name=choice.precision,
        offload=choice.offload.of_states,
    )


def stage_cuts(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where each stage begins and ends among all layers, of which the embedding comes
    first, and the final norm and the head last.

    >>> list(stage_cuts((1, 2)))
    [(0, 2), (2, 6)]
    """
    ends = [1 + count for count in accumulate(counts)]
    ends[-1] += 2
    return pairwise([0, *ends])


def _mesh(choice: Uniform, rank: int) -> Mesh:
    width = choice.tp * choice.cp * choice.dp
    sharded = choice.zero > 0
    return Mesh(
        ranks=Ranges(((rank * width, (rank + 1) * width - 1),)),
        dp_replicate=choice.dp // choice.zero_group if sharded else choice.dp,
        dp_shard=choice.zero_group if sharded else 1,
        cp=choice.cp,
        tp=choice.tp,
        ep=choice.ep,
        etp=choice.etp,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plans:
    """The plan of every layer, in model order: as it is, recomputed, and recomputed
    with its input."""

    kept: tuple[LayerPlan, ...]
    redone: tuple[LayerPlan, ...]
    inside: tuple[LayerPlan, ...]  # of segments; empty where every layer is its own

    def between(
        self, first: int, end: int, recompute_layers: int | None
    ) -> tuple[LayerPlan, ...]:
        """Of layers *first* to *end* - 1, of which so many numbered ones, or all, are
        recomputed."""
        start = max(first, 1)  # the embedding counts for none, nor do the other ends
        body = min(end, len(self.kept) - 2) - start
        limit = body if recompute_layers is None else min(body, recompute_layers)
        turn = start + limit
        return self._again(first, start, turn) + self.kept[turn:end]

    def _again(self, first: int, start: int, turn: int) -> tuple[LayerPlan, ...]:
        if not self.inside:
            return self.redone[first:turn]
        begins = {start + number for number in first_of_each(turn - start)}
        return tuple(
            (self.redone if layer < start or layer in begins else self.inside)[layer]
            for layer in range(first, turn)
        )


def _plans(choice: Uniform, graph: ModelGraph) -> _Plans:
    again = body_presets(choice.recompute, graph)
    sharding = "megatron-sp" if choice.sequence_parallel else "megatron"

    def plan(retention: Retention) -> LayerPlan:
        return LayerPlan(sharding=sharding, zero=choice.zero, retention=retention)

    ends = plan(KEEP_ALL)

    def every(of: Callable[[Block], Retention]) -> tuple[LayerPlan, ...]:
        body = {block.name: plan(of(block)) for block, _ in graph.runs}
        return tuple(
            one
            for block, count in graph.blocks
            for one in repeat(body.get(block.name, ends), count)
        )

    return _Plans(
        kept=every(lambda block: offloaded(KEEP_ALL, block, choice.offload)),
        redone=every(lambda block: offloaded(again[block.name], block, choice.offload)),
        inside=every(inner) if choice.recompute == "sqrt" else (),
    )


SCHEDULES: Final = (
    *("1f1b", "gpipe", "interleaved"),
    *("zb-h1", "zb-interleaved", "zb-v", "dualpipe-v", "chimera"),
    *("async-1f1b", "2bw", "pipemare", "pb"),
)
RECOMPUTES: Final = PRESETS
SQRT: Final = RECOMPUTES.index("sqrt")
# One for all rows: they are the question's.
_SHARED: Final = (
    "precision",
    "gradient_format",
    "flash_attention",
    "offload",
    "zero_plus",
)
_KNOWN: Final = tuple(map(schedule_called, SCHEDULES))
_ENDS_AT_FIRST: Final = ("1f1b", "gpipe", "interleaved")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Many a `Uniform` as equal-length integer arrays; schedules and kinds of context
    parallelism are indices into `SCHEDULES` and `CP_KINDS`, what is recomputed into
    `recomputes`."""

    tp: Array
    pp: Array
    dp: Array
    cp: Array
    ep: Array
    etp: Array
    micro_batch: Array
    schedule: Array
    virtual_stages: Array
    zero: Array
    zero_group: Array
    sequence_parallel: Array
    recompute: Array
    cp_kind: Array
    precision: str = "bf16"
    gradient_format: str = "fp32"
    flash_attention: bool = True
    offload: Offload = NOTHING
    zero_plus: ZeroPlus = PLAIN
    recomputes: tuple[str, ...] = RECOMPUTES

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def gpus(self) -> Array:
        """Devices of each row."""
        return np.asarray(self.tp * self.pp * self.dp * self.cp)

    @property
    def in_v(self) -> Array:
        """Where the second half of the stages lies on the ranks in reverse."""
        return np.array([known.in_v for known in _KNOWN])[self.schedule]

    @property
    def copies(self) -> Array:
        """Of the model."""
        return np.array([known.copies for known in _KNOWN])[self.schedule]

    @property
    def in_pairs(self) -> Array:
        """Where the first rank holds the last stage too: in a V, or both ways."""
        return self.in_v | (self.copies > 1)

    @property
    def puts_off(self) -> Array:
        """Where backwards are split."""
        return np.array([known.splits for known in _KNOWN])[self.schedule]

    @property
    def stale(self) -> Array:
        """Where a step does not flush the pipeline."""
        return np.array([known.stale is not None for known in _KNOWN])[self.schedule]

    @property
    def ends_at_first(self) -> Array:
        """Where the first stage's last backward is the pipeline's last pass."""
        return np.array([name in _ENDS_AT_FIRST for name in SCHEDULES])[self.schedule]

    def take(self, index: Array) -> Columns:
        """The rows at *index*, or where a mask is true."""
        return replace(self, **{name: getattr(self, name)[index] for name in INTEGERS})

    def choice(self, row: int) -> Uniform:
        """One row as the dozen numbers that people say."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _SHARED}
        names = _names(self.recomputes)
        for name in INTEGERS:
            value = int(getattr(self, name)[row])
            values[name] = names[name][value] if name in names else value
        return Uniform(**values)

    @classmethod
    def of(cls, rows: Sequence[Uniform]) -> Columns:
        """Columns of *rows*, which share precision and attention kernel."""
        recomputes = recomputes_with(*(row.recompute for row in rows))
        names = _names(recomputes)
        values: dict[str, Any] = {name: getattr(rows[0], name) for name in _SHARED}
        for name in INTEGERS:
            found = [getattr(row, name) for row in rows]
            codes = map(names[name].index, found) if name in names else map(int, found)
            values[name] = np.array(list(codes))
        return cls(**values, recomputes=recomputes)

    @classmethod
    def concatenate(cls, several: Iterable[Columns]) -> Columns:
        """All rows, one after another; they share all that is no array."""
        parts = list(several)
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in INTEGERS
        }
        return replace(parts[0], **columns)


INTEGERS: Final = tuple(
    item.name for item in fields(Columns) if item.name not in (*_SHARED, "recomputes")
)


def _names(recomputes: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    """What the numbers of some columns stand for."""
    return {
        "schedule": SCHEDULES,
        "cp_kind": CP_KINDS,
        "recompute": recomputes,
        "sequence_parallel": (False, True),
    }


def recomputes_with(*names: str) -> tuple[str, ...]:
    """The presets, and behind them those of *names* that list operators.

    >>> recomputes_with("full", "mlp_up,activation")[-2:]
    ('sqrt', 'mlp_up,activation')
    """
    known = (*PRESETS, *LATER)
    return (*RECOMPUTES, *dict.fromkeys(name for name in names if name not in known))


def uniform_of(layout: Layout, graph: ModelGraph) -> Uniform | None:
    """The dozen numbers that mean exactly *layout*; None if no such numbers do."""
    return _meaning(layout, graph, _guesses(layout))


def nearly_uniform_of(layout: Layout, graph: ModelGraph) -> Uniform | None:
    """The same, but that what layers keep, how their operators are sharded and how many
    a stage has may be their own: recompute is then `auto`, and shardings the preset."""
    cuts = tuple(one.body for one in layout.stages)
    stages = tuple(
        replace(one, plans=tuple(replace(plan, modules=()) for plan in one.plans))
        for one in layout.stages
    )
    preset = replace(layout, stages=stages)
    found = _meaning(preset, graph, _cut(_guesses(preset), cuts))
    if found is not None:
        return found
    stages = tuple(
        replace(one, plans=tuple(replace(it, retention=KEEP_ALL) for it in one.plans))
        for one in stages
    )
    bare = replace(layout, stages=stages)
    found = _meaning(bare, graph, _cut(islice(_guesses(bare), 1), cuts))
    return None if found is None else replace(found, recompute=AUTO)


def _meaning(
    layout: Layout, graph: ModelGraph, choices: Iterable[Uniform]
) -> Uniform | None:
    """The first of *choices* that means *layout*."""
    for choice in choices:
        try:
            if spell_out(choice, graph, layout.global_batch) == layout:
                return choice
        except MeshwrightError:
            continue
    return None


def _cut(choices: Iterable[Uniform], cuts: tuple[int, ...]) -> Iterator[Uniform]:
    """Each of *choices* with stages as even as can be, and with these *cuts*."""
    for choice in choices:
        yield choice
        yield replace(choice, layers_per_stage=cuts)


def _guesses(layout: Layout) -> Iterator[Uniform]:
    """By recompute preset, in all layers and in the first few of each stage."""
    away = layout.away
    if layout.away_share:
        away = replace(away, activations=layout.away_share)
    else:
        away = replace(away, compress=layout.compression)
    plain = replace(Uniform.of_stage(layout, layout.stages[0]), offload=away)
    cut = tuple(one.body for one in layout.stages)
    for counts in (None, cut):
        for name in RECOMPUTES:
            yield replace(plain, recompute=name, layers_per_stage=counts)
    most = max(one.body for one in layout.stages)
    for name in RECOMPUTES[1:]:
        for first in range(most):
            yield replace(plain, recompute=name, recompute_layers=first)
