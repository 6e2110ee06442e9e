"""Scans: FLOPs and bytes by hand, shards that add up, states that travel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.operators.operator_cost import operator_price
from costmodel.operators.recurrence import state_messages
from costmodel.operators.sharding import parameters as held
from costmodel.operators.work import OperatorPrice
from costmodel.simulation.flops import model_flops, operator_flops
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.graph import Block
from profiles.models.job import Job

BF16 = precision("bf16")
HYBRIDS = {
    "mamba-2": ("nemotron-h-8b", "mamba-2-layer"),
    "gated-delta": ("qwen3-next-80b-a3b", "expert-gated-delta-layer"),
    "linear": ("minimax-text-01", "expert-linear-layer"),
    "mamba-1": ("jamba-v0.1", "mamba-1-layer"),
}
ON = machine(cluster("dgx-h100"), load_framework("megatron-core"))


def block_of(kind: str) -> Block:
    name, block = HYBRIDS[kind]
    return model(name).job().graph.block(block)


def degrees(seq_len: int = 4096, tp: int = 1, cp: int = 1, **more: Any) -> Degrees:
    return Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(cp),
        micro_batch=np.asarray(1),
        seq_len=seq_len,
        sequence_parallel=more.pop("sequence_parallel", False),
        **more,
    )


def scan(kind: str, where: Machine = ON, **more: Any) -> OperatorPrice:
    block = block_of(kind)
    return operator_price(block.operator("scan"), block, degrees(**more), BF16, where)


def test_a_mamba_2_scan_by_hand() -> None:
    """128 heads of 64, states of 128, 8 groups, chunks of 128: of each token 2·128·128
    FLOPs a group for scores, half of 2·128·64 a head for values, 2·2·64·128 a head for
    states; backward twice that, and scores and states once more."""
    tokens = 4096
    scores, inner, state = 2 * 128 * 128 * 8, 2 * 64 * 64 * 128, 2 * 64 * 128 * 128
    found = scan("mamba-2")
    assert float(found.forward.flops) == tokens * (scores + inner + 2 * state)
    again = 3 * scores + 2 * inner + 5 * state
    assert float(found.backward.flops) == tokens * again


def test_a_gated_delta_scan_by_hand() -> None:
    """32 heads, keys and values of 128, chunks of 64: a token and head has two scores
    and three products as long with values or keys, an inverse, three with the state."""
    chunk, key, value = 64, 128, 128
    each = 2 * chunk * (2 * key + key + 2 * value) + 2 * chunk * chunk / 3
    each += 3 * 2 * key * value
    found = scan("gated-delta")
    assert float(found.forward.flops) == pytest.approx(4096 * 32 * each, rel=1e-12)


def test_mamba_1_is_bound_by_memory_or_plain_units() -> None:
    """9 FLOPs a channel and state (Gu and Dao, 2023)."""
    found = scan("mamba-1")
    assert float(found.forward.flops) == 9 * 16 * 8192 * 4096
    moved = 5 * 2 * 8192 * 4096 / ON.device.memory_bytes_per_s
    assert float(found.forward.compute_s) > moved


@pytest.mark.parametrize("kind", HYBRIDS)
def test_reported_flops_are_of_the_state(kind: str) -> None:
    """As Megatron-LM reports: 7 a token and element of Mamba-2's state."""
    block, asked = block_of(kind), model(HYBRIDS[kind][0]).job()
    sizes = block.extents
    elements = sizes["mixer_value"] * sizes["mixer_state"]
    each = {"mamba-2": 7, "gated-delta": 8, "linear": 4, "mamba-1": 9}[kind]
    found = operator_flops(block.operator("scan"), block, asked)
    assert found == each * asked.tokens * elements


@pytest.mark.parametrize("kind", HYBRIDS)
@given(tp=st.sampled_from((1, 2, 4, 8)), sp=st.booleans())
def test_ranks_of_tp_hold_and_do_the_whole(kind: str, tp: int, sp: bool) -> None:
    """All heads once; what is of all heads (a gated delta net's norm, Mamba-1's narrow
    product) is on every rank."""
    block = block_of(kind)
    one = degrees()
    some = degrees(tp=tp, sequence_parallel=sp and tp > 1)
    for operator in block.operators:
        if "mixer" not in operator.name and operator.name not in ("conv", "scan"):
            continue
        whole = float(held(operator, block, one))
        shared = float(held(operator, block, some))
        if operator.vector_dim == "mixer_head_dim":
            assert shared == whole
        else:
            assert shared * tp == pytest.approx(whole, rel=1e-12)
    alone, shard = scan(kind), scan(kind, tp=tp)
    for one_s, part_s in (
        (alone.forward, shard.forward),
        (alone.backward, shard.backward),
    ):
        assert float(part_s.flops) * tp == pytest.approx(float(one_s.flops), rel=1e-12)
        assert float(part_s.compute_s) <= float(one_s.compute_s) * (1 + 1e-12)
        assert float(part_s.compute_s) * tp >= float(one_s.compute_s) * (1 - 1e-12)


@pytest.mark.parametrize("kind", ["mamba-2", "gated-delta"])
def test_more_ranks_than_groups_hold_a_group_each(kind: str) -> None:
    block = block_of(kind)
    groups, state = block.extents["mixer_groups"], block.extents["mixer_state"]
    wide = degrees(tp=2 * groups)
    convolved = float(held(block.operator("conv"), block, wide))
    own = block.extents["mixer_value"] // (2 * groups) + 2 * state
    assert convolved == block.operator("conv").vectors * own


@pytest.mark.parametrize("kind", HYBRIDS)
@given(log=st.integers(9, 15))
def test_twice_the_tokens_are_no_more_than_twice_the_time(kind: str, log: int) -> None:
    """A scan is linear in the sequence, as attention is not."""
    once, twice = (scan(kind, seq_len=2**one).forward for one in (log, log + 1))
    assert float(twice.flops) == pytest.approx(2 * float(once.flops), rel=1e-12)
    assert float(once.compute_s) <= float(twice.compute_s)
    assert float(twice.compute_s) <= 2 * float(once.compute_s) * (1 + 1e-12)


def test_states_travel_over_cp() -> None:
    """A state of 128 x 64 in fp32 for each of 128 heads to the next rank, or of all
    ranks gathered, or all tokens of some heads by all-to-all."""
    block, state = block_of("mamba-2"), 128 * 128 * 64 * 4
    ways = {
        kind: state_messages("forward", block, degrees(cp=4, cp_kind=kind), BF16)
        for kind in ("ring", "all-gather", "ulysses")
    }
    (sent,) = ways["ring"]
    assert (sent.kind, float(sent.size_bytes), int(sent.times)) == ("send", state, 3)
    (gathered,) = ways["all-gather"]
    assert float(gathered.size_bytes) == 4 * state
    there, back = ways["ulysses"]
    width = 2 * 8192 + 2 * 8 * 128 + 128
    assert float(there.size_bytes) == 1024 * width * 2
    assert float(back.size_bytes) == 1024 * 8192 * 2


@pytest.mark.parametrize("kind", HYBRIDS)
@pytest.mark.parametrize("cp_kind", ["ring", "all-gather", "ulysses"])
def test_cp_shares_the_work(kind: str, cp_kind: str) -> None:
    alone = scan(kind, seq_len=32768).forward
    shared = scan(kind, seq_len=32768, cp=4, cp_kind=cp_kind).forward
    assert float(shared.flops) * 4 == pytest.approx(float(alone.flops), rel=1e-12)
    assert float(shared.context_comm_s) > 0 == float(alone.context_comm_s)


def test_saved_bytes_of_a_mamba_2_mixer_by_hand() -> None:
    """bf16, a token: the norm's input and output (4096 each), the first product's
    output (2·8192 + 2·8·128 + 128), the scan's and the norm's output (8192 each)."""
    block = block_of("mamba-2")
    kept: dict[str, float] = {}
    for operator in block.operators:
        price = operator_price(operator, block, degrees(), BF16, ON)
        kept |= {name: float(size) for name, size in price.saved.items()}
    width = 2 * 4096 + (2 * 8192 + 2 * 8 * 128 + 128) + 2 * 8192
    assert sum(kept.values()) == 4096 * width * 2


def test_a_latent_is_what_is_sent_to_experts() -> None:
    """Nemotron 3 Super sends rows of 1024 of its 4096 elements."""
    block = model("nemotron-3-super").job().graph.block("expert-layer")
    narrow = block.operator("dispatch")
    wide = replace(block, extents={**block.extents, "latent": 4096})
    sent = [
        float(
            operator_price(
                narrow, one, degrees(ep=np.asarray(8)), BF16, ON
            ).forward.expert_comm_s
        )
        for one in (block, wide)
    ]
    assert 2 < sent[1] / sent[0] <= 4
    experts = block.operator("mlp_up")
    assert float(held(experts, block, degrees())) == 512 * 1024 * 2688


def test_flops_of_a_hybrid_by_hand() -> None:
    """Nemotron-H: 24 Mamba-2 layers, 24 MLPs, 4 of attention, and the head."""
    asked = Job(
        model="nemotron-h-8b",
        spec=model("nemotron-h-8b").spec,
        seq_len=8192,
        global_batch=1,
    )
    mamba = 2 * 4096 * (2 * 8192 + 2 * 1024 + 128) + 7 * 8192 * 128 + 2 * 8192 * 4096
    mlp = 2 * 2 * 4096 * 21504
    attention = 2 * 4096 * (4096 + 2048) + 2 * 4096 * 4096 + 4 * 8192 * 4096
    each = 24 * (mamba + mlp) + 4 * attention + 2 * 4096 * 131072
    assert model_flops(asked) == pytest.approx(3 * 8192 * each, rel=1e-12)
