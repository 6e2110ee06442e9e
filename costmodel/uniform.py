"""`Uniform`: a layout whose stages are alike, as the dozen numbers that people say.

Both the command line and the planner's columns speak in these; `layout` spells one
out as the full `Layout`, and `of_layout` reads it back where stages are alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.layout import LayerPlan, Layout, Mesh, Stage
from costmodel.offload import NOTHING, Offload, offloaded
from costmodel.ranges import Ranges
from costmodel.retention import KEEP_ALL, preset
from costmodel.schedule import holders
from profiles.errors import InvalidSpec
from profiles.graph import Block, ModelGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """One candidate: degrees, micro-batch, schedule, ZeRO and retention preset."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
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


def split_layers(body: int, stages: int) -> tuple[int, ...]:
    """Numbered layers per virtual stage: as even as can be, the ends lighter.

    The last stage also has the head and the first the embedding, so what does not
    divide goes to the middle, latest stages first (they hold fewer micro-batches).

    >>> split_layers(10, 4)
    (2, 3, 3, 2)
    """
    if not 1 <= stages <= body:
        raise InvalidSpec(
            f"{stages} virtual stages need at least as many layers, the model has "
            f"{body}; choose pp × virtual stages up to {body}"
        )
    base, extra = divmod(body, stages)
    counts = [base] * stages
    order = [*range(stages - 2, 0, -1), 0, stages - 1]
    for stage in order[:extra] if stages > 1 else []:
        counts[stage] += 1
    return tuple(counts)


def interleaves(body: int, stages: int) -> bool:
    """Whether *body* layers fall into *stages* chunks that interleaving can use.

    All alike, or all but the ends, which count embedding and head as a layer each
    (Megatron's --account-for-embedding-in-pipeline-split): 126 layers into 64 chunks.

    >>> interleaves(40, 8), interleaves(126, 64), interleaves(42, 8)
    (True, True, False)
    """
    return stages <= body and (body % stages == 0 or (body + 2) % stages == 0)


def spell_out(choice: Uniform, graph: ModelGraph, global_batch: int) -> Layout:
    """The full layout that *choice* means for a model.

    Raises InvalidSpec if the degrees do not divide.
    """
    if choice.dp % choice.zero_group:
        raise InvalidSpec(
            f"zero_group={choice.zero_group} does not divide dp={choice.dp}"
        )
    total = choice.pp * choice.virtual_stages
    counts = split_layers(graph.body, total)
    held = holders(choice.schedule, choice.pp, choice.virtual_stages)
    meshes = [_mesh(choice, rank) for rank in range(choice.pp)]
    kinds = _kinds(choice, graph.block("layer"))
    stages, first = [], 0
    for stage, count in enumerate(counts):
        names = [str(number) for number in range(first, first + count)]
        first += count
        layers = _with_ends(names, stage, total)
        stages.append(
            Stage(
                layers=layers,
                plans=_plans(kinds, layers, choice.recompute_layers),
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
    )


def _kinds(choice: Uniform, block: Block) -> tuple[LayerPlan, LayerPlan, LayerPlan]:
    """The plan of the ends, of a layer, and of one that is recomputed."""
    sharding = "megatron-sp" if choice.sequence_parallel else "megatron"
    again = preset(choice.recompute, block)
    of_ends, kept, redone = (
        LayerPlan(sharding=sharding, zero=choice.zero, retention=retention)
        for retention in (
            KEEP_ALL,
            offloaded(KEEP_ALL, block, choice.offload),
            offloaded(again, block, choice.offload),
        )
    )
    return of_ends, kept, redone


def _plans(
    kinds: tuple[LayerPlan, LayerPlan, LayerPlan],
    layers: tuple[str, ...],
    recompute_layers: int | None,
) -> tuple[LayerPlan, ...]:
    of_ends, kept, redone = kinds
    limit = len(layers) if recompute_layers is None else recompute_layers
    plans, numbered = [], 0
    for name in layers:
        if not name.isdigit():
            plans.append(of_ends)
            continue
        plans.append(redone if numbered < limit else kept)
        numbered += 1
    return tuple(plans)
