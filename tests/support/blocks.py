"""Blocks of models on meshes, for tests of their sharding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.layout.sharding_spec import WHOLE, ModuleSharding
from costmodel.machine.topology import MeshAxis, mesh_axes
from costmodel.operators.loop_sharding import module_sharding
from planner.sharding.problem import BlockProblem
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.graph import Block
from profiles.models.spec import DecoderSpec
from tests.support.problems import on

PAIR = mesh_axes(tp=2)


def block_of(name: str, block: str = "layer") -> Block:
    spec = model(name).spec
    assert isinstance(spec, DecoderSpec)
    return decoder_graph(spec).block(block)


def part(block: Block, *names: str) -> Block:
    """Only these operators of a block, in the block's order."""
    kept = tuple(one for one in block.operators if one.name in names)
    return replace(block, operators=kept, entry=kept[0].inputs[0])


def mlp(name: str = "gpt-13b") -> Block:
    return part(block_of(name), "mlp_up", "activation", "mlp_down")


def attention(name: str = "gpt-13b") -> Block:
    names = ("qkv", "qk_norm", "rotary", "attention", "projection")
    return part(block_of(name), *names)


def block_problem(
    block: Block,
    axes: tuple[MeshAxis, ...] = PAIR,
    *,
    sequences: int = 1,
    seq_len: int = 1024,
    where: str = "dgx-a100-80gb",
    **settings: Any,
) -> BlockProblem:
    return BlockProblem(
        block=block,
        axes=axes,
        sequences=sequences,
        seq_len=seq_len,
        machine=on(where),
        precision=precision("bf16"),
        **settings,
    )


def along_sequences(block: Block) -> tuple[ModuleSharding, ...]:
    """Every operator of a layer on its rank's sequences, between layers that hand on
    whole ones."""
    handed = {block.entry.name: (WHOLE,)} if block.entry else {}
    found = []
    for operator in block.operators:
        last = operator is block.operators[-1]
        loops = (WHOLE,) if last else ("batch",)
        found.append(
            module_sharding(
                operator,
                loops,
                loops,
                [handed[one.name] for one in operator.inputs],
                block=block.name,
                axes=("tp",),
            )
        )
        handed[operator.output.name] = loops
    return tuple(found)
