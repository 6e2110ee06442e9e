"""What context-parallel ranks exchange: bytes by kind, for grouped heads, both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel.machine.assembly import machine
from costmodel.operators.attention import attention_work, messages
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import backward_collectives, forward_collectives
from costmodel.operators.work import OnRank, Work
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.job import Job

ON = machine(cluster("dgx-h100"))
BF16 = precision("bf16")
S, B, TP = 16384, 2, 2
JOB = Job(model="llama3-8b", spec=model("llama3-8b").spec, seq_len=S, global_batch=8)
BLOCK = JOB.graph.block("layer")
QUERY, KEY_VALUE = 32 * 128 // TP, 2 * 8 * 128 // TP  # elements a token and tp rank


def passes(kind: str, cp: int) -> tuple[Work, Work]:
    degrees = Degrees(
        tp=np.asarray(TP),
        cp=np.asarray(cp),
        micro_batch=np.asarray(B),
        seq_len=S,
        sequence_parallel=True,
        cp_kind=kind,
        flash_attention=kind != "rsa",
    )
    return attention_work(OnRank(BLOCK.operator("attention"), BLOCK, degrees, BF16, ON))


def taken(kind: str, elements: float, cp: int, near: int) -> float:
    return float(
        ON.collective_s(
            kind,
            np.asarray(2.0 * elements),
            ranks=np.asarray(cp),
            near=np.asarray(near),
        )
    )


@pytest.mark.parametrize(("cp", "near"), [(4, 4), (8, 4)])
def test_all_gather_moves_keys_and_values_and_their_gradients(
    cp: int, near: int
) -> None:
    whole = B * S * KEY_VALUE
    forward, backward = passes("all-gather", cp)
    gathered = taken("all_gather", whole, cp, near)
    scattered = taken("reduce_scatter", whole, cp, near)
    assert float(forward.context_comm_s) == pytest.approx(gathered)
    assert float(backward.context_comm_s) == pytest.approx(gathered + scattered)


def test_ulysses_moves_what_a_rank_holds_there_and_back() -> None:
    """Queries, keys and values in, the output back; the same of gradients."""
    cp, local = 4, B * S // 4
    wanted = taken("all_to_all", local * (QUERY + KEY_VALUE), cp, 4)
    wanted += taken("all_to_all", local * QUERY, cp, 4)
    for work in passes("ulysses", cp):
        assert float(work.context_comm_s) == pytest.approx(wanted)


def test_ulysses_repeats_key_value_heads_that_are_too_few() -> None:
    """Four key-value heads on a tp rank, eight cp ranks: each needs one."""
    cp, local = 8, B * S // 8
    repeated = 2 * cp * 128
    assert repeated > KEY_VALUE
    wanted = taken("all_to_all", local * (QUERY + repeated), cp, 4)
    wanted += taken("all_to_all", local * QUERY, cp, 4)
    forward, _ = passes("ulysses", cp)
    assert float(forward.context_comm_s) == pytest.approx(wanted)


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ring_passes_blocks_on_behind_attention(cp: int) -> None:
    """cp - 1 times the local keys and values; and their gradients in backward."""
    block = 2.0 * B * S // cp * KEY_VALUE
    for rounds, work in enumerate(passes("ring", cp), 1):
        sent = float(ON.send_s(np.asarray(block * rounds), far=np.asarray(cp > 4)))
        hidden = float(work.compute_s) / cp
        wanted = (cp - 1) * max(sent - hidden, 0.0)
        assert float(work.context_comm_s) == pytest.approx(wanted, abs=1e-12)


def on_evenly(cp: int, *, causal: bool = True) -> tuple[float, float]:
    """(forward, backward) of a ring whose kernels lose nothing to tails and gaps."""
    kernels = {
        name: replace(rate, forward_tail=0.0, backward_tail=0.0, overhead_s=0.0)
        if name.startswith("flash")
        else rate
        for name, rate in ON.rates.attention.items()
    }
    traffic = replace(ON.rates.traffic, overhead_s=0.0)
    rates = replace(ON.rates, attention=kernels, traffic=traffic)
    attention = replace(BLOCK.operator("attention"), causal=causal)
    degrees = Degrees(
        tp=np.asarray(TP),
        cp=np.asarray(cp),
        micro_batch=np.asarray(B),
        seq_len=S,
        sequence_parallel=True,
    )
    on = replace(ON, rates=rates)
    works = attention_work(OnRank(attention, BLOCK, degrees, BF16, on))
    forward, backward = (float(work.compute_s) for work in works)
    return forward, backward


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ring_computes_as_much_and_adds_up(cp: int, causal: bool) -> None:
    """A rank's share of the scores, and of every kernel what is read twice and written
    once: cp outputs forward, of which a causal mask halves half of all but one; as many
    gradients of queries, and cp of keys and values, backward."""
    alone, ring = on_evenly(1, causal=causal), on_evenly(cp, causal=causal)
    local, steps = B * S // cp, (1 + (cp - 1) * 0.75 if causal else cp)
    bandwidth = ON.rates.traffic.fraction * ON.device.memory_bytes_per_s
    added = [steps * QUERY, steps * QUERY + cp * KEY_VALUE]
    for one, some, width in zip(alone, ring, added, strict=True):
        assert some == pytest.approx(one / cp + 3 * 2 * local * width / bandwidth)


@pytest.mark.parametrize(("cp", "near"), [(2, 2), (4, 4), (8, 4)])
def test_rsa_waits_for_keys_then_values_and_sums_their_gradients(
    cp: int, near: int
) -> None:
    keys = B * S // cp * KEY_VALUE / 2
    turn = float(ON.send_s(np.asarray(2.0 * keys), far=np.asarray(cp > near)))
    summed = taken("all_reduce", cp * keys, cp, near)
    forward, backward = passes("rsa", cp)
    assert float(forward.context_comm_s) == pytest.approx(2 * (cp - 1) * turn)
    assert float(backward.context_comm_s) == pytest.approx(
        2 * (cp - 1) * turn + 2 * summed
    )


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_rsa_takes_the_longer_the_smaller_its_blocks(cp: int) -> None:
    """All ranks together fill the whole square, block by block."""
    alone, part = passes("rsa", 1), passes("rsa", cp)
    for one, some in zip(alone, part, strict=True):
        assert float(some.compute_s) * cp >= float(one.compute_s)
        assert float(some.flops) == pytest.approx(float(one.flops) / cp)


@pytest.mark.parametrize("name", ["llama3-8b", "mistral-7b"])
def test_a_rank_alone_has_no_ring(name: str) -> None:
    """Nor whole rows where a window bands them, though others of a table of layouts
    have a ring."""
    whole = Job(model=name, spec=model(name).spec, seq_len=S, global_batch=8)
    block = whole.graph.block("layer")
    one, four, many = np.asarray(1), np.asarray(4), np.asarray([1, 4])

    def works(kind: str, cp: NDArray[Any]) -> tuple[Work, Work]:
        degrees = Degrees(
            tp=one,
            cp=cp,
            micro_batch=one,
            seq_len=S,
            sequence_parallel=False,
            cp_kind=kind,
            flash_attention=False,
        )
        operator = block.operator("attention")
        return attention_work(OnRank(operator, block, degrees, BF16, ON))

    together = works("rsa", many)
    apart = zip(works("ring", one), works("rsa", four), strict=True)
    for both, (alone, ring) in zip(together, apart, strict=True):
        for member in ("compute_s", "flops", "context_comm_s"):
            expected = [float(getattr(work, member)) for work in (alone, ring)]
            found = np.broadcast_to(getattr(both, member), many.shape)
            assert found == pytest.approx(expected), member


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_rsa_sends_as_much_as_tensor_parallelism(ranks: int) -> None:
    """Li et al. (ACL 2023), section 3.2: 8(N − 1)·B·Z·(L/N)·A elements a layer and
    rank, of a model with as many key-value heads as others."""
    spec = model("llama-65b").spec
    whole = Job(model="llama-65b", spec=spec, seq_len=S, global_batch=8)
    block = whole.graph.block("layer")
    sent = {"send": 1.0, "all_reduce": 2 * (ranks - 1) / ranks}  # shares of a ring
    rsa, tensor = (
        Degrees(
            tp=np.asarray(tp),
            cp=np.asarray(cp),
            micro_batch=np.asarray(B),
            seq_len=S,
            sequence_parallel=False,
            cp_kind="rsa",
            flash_attention=False,
        )
        for tp, cp in ((1, ranks), (ranks, 1))
    )
    by_rsa = sum(
        float(one.size_bytes * one.times) * sent[one.kind]
        for direction in ("forward", "backward")
        for one in messages(direction, block, rsa, BF16)
    )
    by_tensor = sum(
        float(one.size_bytes) * sent[one.kind]
        for rule in (forward_collectives, backward_collectives)
        for operator in block.operators
        for one in rule(operator, block, tensor, BF16)
    )
    wanted = 8 * (ranks - 1) * B * block.heads * S / ranks * block.head_dim
    assert by_rsa / 2 == pytest.approx(wanted)  # 16 bits
    assert by_tensor / 2 == pytest.approx(wanted)


def test_causal_work_is_shared_equally() -> None:
    """Zig-zag: a rank has 1/cp of the half square, there and back."""
    alone, shared = passes("ring", 1), passes("ring", 4)
    for one, quarter in zip(alone, shared, strict=True):
        assert float(quarter.flops) == pytest.approx(float(one.flops) / 4)
        assert float(one.context_comm_s) == 0


@pytest.mark.parametrize(("tp", "rings"), [(1, 1), (2, 2), (8, 8)])
def test_rings_over_nodes_share_the_ports_they_leave_by(tp: int, rings: int) -> None:
    """Of each ring one rank sends out of a node: eight of them share its one port."""
    on = machine(cluster("p3.16xlarge"))
    degrees = Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(16),
        micro_batch=np.asarray(1),
        seq_len=2048,
        sequence_parallel=False,
        cp_kind="rsa",
        flash_attention=False,
    )
    forward, _ = attention_work(
        OnRank(BLOCK.operator("attention"), BLOCK, degrees, precision("fp16"), on)
    )
    (keys,) = messages("forward", BLOCK, degrees, precision("fp16"))
    far, port = np.asarray(True), 8 / rings
    turn = float(on.send(keys.size_bytes, far=far, shares=port).seconds)
    assert float(forward.context_comm_s) == pytest.approx(2 * 15 * turn)
