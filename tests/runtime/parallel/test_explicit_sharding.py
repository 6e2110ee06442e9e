"""Layers of explicit shardings train like one process, and send what is priced."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from costmodel.layout.layout import Layout
from costmodel.layout.sharding_spec import WHOLE, ModuleSharding
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.machine.topology import mesh_axes
from planner.sharding.intra_op import solve
from planner.sharding.problem import ENTRY, BlockProblem
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.job import Job
from runtime.train.trainer import rank_stream
from tests.oracles.action_traffic import stream_traffic
from tests.runtime.ranks import on_ranks
from tests.support.apart import apart
from tests.support.small_layouts import FP32, SP
from tests.support.training import FEW_STEPS, reference, trained_as
from tests.support.training_cases import BATCH, job

LOSS, TENSORS = 1e-5, 1e-4
Decided = Mapping[str, tuple[str, str]]  # operator: its loop, what it hands on
# None of it is Megatron's sharding; what is not decided is the program's choice.
ULYSSES = {
    "qkv": ("sequence", "sequence"),
    "qk_norm": ("sequence", "sequence"),
    "rotary": ("sequence", "sequence"),
    "attention": ("heads", "heads"),
    "projection": ("heads", "sequence"),
    "mlp_up": ("hidden", "ffn"),
    "activation": ("ffn", "ffn"),
    "mlp_down": ("hidden", "hidden"),
}
WIDTHS = {
    "input_norm": ("batch", "batch"),
    "qkv": ("batch", "batch"),
    "attention": ("heads", "heads"),
    "projection": ("heads", "hidden"),
    "attention_residual": ("hidden", "hidden"),
    "mlp_norm": ("sequence", "sequence"),
    "mlp_up": ("hidden", "whole"),
    "mlp_down": ("ffn", "batch"),
}
ROWS = {
    "qkv": ("batch", "batch"),
    "attention": ("batch", "batch"),
    "projection": ("batch", "batch"),
    "mlp_up": ("whole", "whole"),
    "mlp_down": ("ffn", "sequence"),
}
CASES: dict[str, tuple[str, Uniform, Decided]] = {
    "sequence and heads": ("llama", SP, ULYSSES),
    "sums scattered over the width": ("gpt", replace(FP32, tp=2), WIDTHS),
    "sequences": ("gpt", replace(SP, recompute="full"), ROWS),
}


@pytest.mark.slow
def test_shardings_of_the_program_train_like_one_process() -> None:
    _require_alike("sequence and heads")


@pytest.mark.matrix
def test_every_other_one_does_too() -> None:
    _require_alike("sums scattered over the width", "sequences")


def _require_alike(*names: str) -> None:
    layouts = {name: layout_of(name) for name in names}
    ranks = on_ranks(2, partial(_trained, layouts=layouts))
    for name in names:
        family, _, _ = CASES[name]
        seen, wanted = ranks[0][name], reference(family, steps=FEW_STEPS)
        pairs = zip(seen["losses"], wanted["losses"], strict=True)
        assert max(abs(one - two) for one, two in pairs) < LOSS, name
        assert seen["norm"] == pytest.approx(wanted["norm"], rel=LOSS), name
        for part in ("gradients", "parameters"):
            assert apart(seen[part], wanted[part]) < TENSORS, (name, part)
        for rank in ranks:
            _require_priced(name, layouts[name], rank[name]["recorded"])


def _require_priced(name: str, layout: Layout, recorded: list[Any]) -> None:
    asked = job(CASES[name][0])
    stream = rank_stream(layout, 0)
    for one, exchanged in zip(
        recorded, stream_traffic(asked, layout, stream), strict=True
    ):
        priced = {
            f"tp:{kind}": [traffic.count, traffic.size_bytes]
            for (axis, kind), traffic in exchanged.items()
            if axis == "tp"
        }
        world = exchanged.get(("world", "all_reduce"))
        if world is not None:
            count, size = priced.get("tp:all_reduce", [0, 0])
            priced["tp:all_reduce"] = [count + world.count, size + world.size_bytes]
        assert dict(one["collectives"]) == priced, (name, one["action"])


def layout_of(name: str) -> Layout:
    family, choice, decided = CASES[name]
    asked = job(family)
    modules = sharded(asked, choice, decided)
    plain = spell_out(choice, asked.graph, BATCH)
    return plain.sharded(dict.fromkeys("0123", modules))


def sharded(
    asked: Job, choice: Uniform, decided: Decided
) -> tuple[ModuleSharding, ...]:
    """What the program makes of a layer of which so much is *decided*, between layers
    that hand on what *choice* does."""
    block = asked.graph.block("layer")
    between = ("sequence" if choice.sequence_parallel else WHOLE,)
    problem = BlockProblem(
        block=block,
        axes=mesh_axes(tp=choice.tp),
        sequences=choice.micro_batch,
        seq_len=asked.seq_len,
        machine=machine(cluster("dgx-a100-80gb")),
        precision=precision("fp32"),
        micro_batches=10_000,
        decided={
            **{name: ((loop,), (handed,)) for name, (loop, handed) in decided.items()},
            ENTRY: (between, between),
            block.operators[-1].name: (between, between),
        },
    )
    return solve(problem).shardings


def _trained(rank: int, layouts: Mapping[str, Layout]) -> dict[str, Any]:
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    return {
        name: trained_as(job(CASES[name][0]), layout, steps=FEW_STEPS)
        for name, layout in layouts.items()
    }
