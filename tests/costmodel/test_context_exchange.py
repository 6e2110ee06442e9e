"""What context-parallel ranks exchange: bytes by kind, for grouped heads, both ways."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.attention_price import attention_work
from costmodel.machine import machine
from costmodel.sharding import Degrees
from costmodel.work import Work
from profiles.catalog import cluster
from profiles.job import Job
from profiles.models.catalog import model
from profiles.precision import precision

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
    )
    return attention_work(BLOCK.operator("attention"), BLOCK, degrees, BF16, ON)


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


def test_causal_work_is_shared_equally() -> None:
    """Zig-zag: a rank has 1/cp of the half square, there and back."""
    alone, shared = passes("ring", 1), passes("ring", 4)
    for one, quarter in zip(alone, shared, strict=True):
        assert float(quarter.flops) == pytest.approx(float(one.flops) / 4)
        assert float(one.context_comm_s) == 0
