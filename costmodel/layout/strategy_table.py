"""`Columns`: candidate layouts as rows of integers.

A layout as the `Uniform` it was spelled out from, where it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Final

import numpy as np

from costmodel.layout.layout import CP_KINDS, Layout
from costmodel.layout.offload import NOTHING, Offload
from costmodel.layout.retention import AUTO, KEEP_ALL, LATER, PRESETS
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.layout.zeropp import PLAIN, ZeroPlus
from costmodel.schedule import schedule_called
from profiles.arrays import Array
from profiles.errors import MeshwrightError
from profiles.models import ModelGraph

SCHEDULES: Final = (
    *("1f1b", "gpipe", "interleaved"),
    *("zb-h1", "zb-interleaved", "zb-v", "dualpipe-v", "chimera"),
)
RECOMPUTES: Final = PRESETS
SQRT: Final = RECOMPUTES.index("sqrt")
_SHARED: Final = (
    "precision",
    "gradient_format",
    "flash_attention",
    "offload",
    "zero_plus",
)
_NAMED: Final = {"schedule": SCHEDULES, "cp_kind": CP_KINDS}
_IN_PAIRS: Final = tuple(
    known.in_v or known.copies > 1 for known in map(schedule_called, SCHEDULES)
)
_ENDS_AT_FIRST: Final = ("1f1b", "gpipe", "interleaved")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Equal-length integer arrays; names are indices into the tuples above, those of
    what is made again into `recomputes`.

    Precision, the attention kernel, what is offloaded and ZeRO++ are one for all rows:
    they are the question's.
    """

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
    def in_pairs(self) -> Array:
        """Where the first rank holds the last stage too: in a V, or both ways."""
        return np.array(_IN_PAIRS)[self.schedule]

    @property
    def _names(self) -> dict[str, tuple[str, ...]]:
        return {**_NAMED, "recompute": self.recomputes}

    @property
    def in_v(self) -> Array:
        found = [schedule_called(name).in_v for name in SCHEDULES]
        return np.array(found)[self.schedule]

    @property
    def copies(self) -> Array:
        """Of the model."""
        found = [schedule_called(name).copies for name in SCHEDULES]
        return np.array(found)[self.schedule]

    @property
    def ends_at_first(self) -> Array:
        """Where the first stage's last backward is the pipeline's last pass."""
        return np.array([name in _ENDS_AT_FIRST for name in SCHEDULES])[self.schedule]

    @property
    def puts_off(self) -> Array:
        """Where backwards are split."""
        return np.array([schedule_called(name).splits for name in SCHEDULES])[
            self.schedule
        ]

    def take(self, index: Array) -> Columns:
        """The rows at *index*, or where a mask is true."""
        return replace(self, **{name: getattr(self, name)[index] for name in INTEGERS})

    def choice(self, row: int) -> Uniform:
        """One row as the dozen numbers that people say."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _SHARED}
        for name in INTEGERS:
            value = int(getattr(self, name)[row])
            values[name] = self._names[name][value] if name in self._names else value
        values["sequence_parallel"] = bool(values["sequence_parallel"])
        return Uniform(**values)

    @classmethod
    def of(cls, rows: Sequence[Uniform]) -> Columns:
        """Columns of *rows*, which share precision and attention kernel."""
        shared: dict[str, Any] = {name: getattr(rows[0], name) for name in _SHARED}
        shared["recomputes"] = recomputes_with(*(row.recompute for row in rows))
        names = {**_NAMED, "recompute": shared["recomputes"]}

        def code(name: str, value: Any) -> int:
            return names[name].index(value) if name in names else int(value)

        columns: dict[str, Any] = {
            name: np.array([code(name, getattr(row, name)) for row in rows])
            for name in INTEGERS
        }
        return cls(**columns, **shared)

    @classmethod
    def concatenate(cls, several: Iterable[Columns]) -> Columns:
        """All rows, one after another; they share precision and `recomputes`."""
        parts = list(several)
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in INTEGERS
        }
        return replace(parts[0], **columns)


INTEGERS: Final = tuple(
    item.name for item in fields(Columns) if item.name not in (*_SHARED, "recomputes")
)


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
    stage = layout.stages[0]
    mesh, plans = stage.mesh, [plan for one in layout.stages for plan in one.plans]
    plain = Uniform(
        tp=mesh.tp,
        pp=layout.pp,
        dp=mesh.dp,
        cp=mesh.cp,
        ep=mesh.ep,
        etp=mesh.etp,
        micro_batch=layout.micro_batch(stage),
        schedule=layout.schedule,
        virtual_stages=layout.virtual_stages,
        zero=plans[0].zero,
        zero_group=mesh.dp_shard,
        sequence_parallel=plans[0].sharding == "megatron-sp",
        cp_kind=layout.cp_kind,
        flash_attention=layout.flash_attention,
        precision=layout.precision_name,
        gradient_format=layout.gradient_format,
        offload=replace(layout.away, activations=layout.away_share),
        zero_plus=layout.zero_plus,
    )
    cut = tuple(one.body for one in layout.stages)
    for counts in (None, cut):
        for name in RECOMPUTES:
            yield replace(plain, recompute=name, layers_per_stage=counts)
    most = max(one.body for one in layout.stages)
    for name in RECOMPUTES[1:]:
        for first in range(most):
            yield replace(plain, recompute=name, recompute_layers=first)
