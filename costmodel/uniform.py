"""`Uniform`: a layout whose stages are alike, as the dozen numbers that people say.

Both the command line and the planner's columns speak in these; `layout` spells one
out as the full `Layout`, and `of_layout` reads it back where stages are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.layout import LayerPlan, Layout, Mesh, Stage
from costmodel.offload import NOTHING, Offload, offloaded
from costmodel.ranges import Ranges
from costmodel.retention import KEEP_ALL, Retention, body_presets
from costmodel.schedule import holders
from costmodel.segments import first_of_each, inner
from profiles.errors import InvalidSpec
from profiles.graph import Block, ModelGraph


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
    head that is as much work as *tail* layers takes their place, as far as a layer is
    left. With as many stages as layers and ends together, the ends stand alone.

    >>> split_layers(10, 4)
    (2, 3, 3, 2)
    >>> split_layers(13, 4, tail=3)
    (4, 4, 4, 1)
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


def replaced(body: Any, stages: Any, tail: int) -> Any:
    """How many of *tail* layers the last stage can do without; numbers or arrays."""
    found = np.zeros_like(stages)
    for fewer in range(1, tail + 1):
        left = (body + fewer) // stages - fewer
        found = np.where((stages > 1) & (left >= 1), fewer, found)
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
    counts = split_layers(graph.body, total, graph.tail)
    held = holders(choice.schedule, choice.pp, choice.virtual_stages)
    meshes = [_mesh(choice, rank) for rank in range(choice.pp)]
    kinds = _kinds(choice, graph)
    stages, first = [], 0
    for stage, count in enumerate(counts):
        names = [str(number) for number in range(first, first + count)]
        first += count
        layers = _with_ends(names, stage, total)
        stages.append(
            Stage(
                layers=layers,
                plans=_plans(
                    kinds, layers, graph.layer_blocks, choice.recompute_layers
                ),
                mesh=meshes[held[stage]],
                held_by=(held[stage],),
            )
        )
    return Layout(
        stages=tuple(stages),
        schedule=choice.schedule,
        virtual_stages=choice.virtual_stages,
        micro_batches=choice.micro_batches(global_batch),
        global_batch=global_batch,
        precision_name=choice.precision,
        gradient_format=choice.gradient_format,
        flash_attention=choice.flash_attention,
        cp_kind=choice.cp_kind,
        offload=choice.offload.of_states,
    )


def _with_ends(names: list[str], stage: int, stages: int) -> tuple[str, ...]:
    head = ["embedding"] if stage == 0 else []
    tail = ["final_norm", "head"] if stage == stages - 1 else []
    return (*head, *names, *tail)


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
class _Kinds:
    """The plan of the ends; by kind of layer, of one as it is, recomputed, and
    recomputed with its input."""

    of_ends: LayerPlan
    kept: dict[str, LayerPlan]
    redone: dict[str, LayerPlan]
    inside: dict[str, LayerPlan]  # of segments; empty where every layer is its own


def _kinds(choice: Uniform, graph: ModelGraph) -> _Kinds:
    again = body_presets(choice.recompute, graph)
    blocks = {block.name: block for block, _ in graph.runs}

    def plan(retention: Retention) -> LayerPlan:
        sharding = "megatron-sp" if choice.sequence_parallel else "megatron"
        return LayerPlan(sharding=sharding, zero=choice.zero, retention=retention)

    return _Kinds(
        of_ends=plan(KEEP_ALL),
        kept={
            name: plan(offloaded(KEEP_ALL, block, choice.offload))
            for name, block in blocks.items()
        },
        redone={
            name: plan(offloaded(again[name], block, choice.offload))
            for name, block in blocks.items()
        },
        inside={name: plan(inner(block)) for name, block in blocks.items()}
        if choice.recompute == "sqrt"
        else {},
    )


def _plans(
    kinds: _Kinds,
    layers: tuple[str, ...],
    blocks: Mapping[str, Block],
    recompute_layers: int | None,
) -> tuple[LayerPlan, ...]:
    body = sum(name.isdigit() for name in layers)
    limit = body if recompute_layers is None else min(body, recompute_layers)
    begins = first_of_each(limit) if kinds.inside else frozenset(range(limit))
    plans, numbered = [], 0
    for name in layers:
        if not name.isdigit():
            plans.append(kinds.of_ends)
            continue
        again = kinds.redone if numbered in begins else kinds.inside
        wanted = again if numbered < limit else kinds.kept
        plans.append(wanted[blocks[name].name])
        numbered += 1
    return tuple(plans)
