"""ZeRO++ on four gloo ranks, two a node: what travels, and how far off it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.offload import ZeroPlus
from costmodel.layout.strategy import Uniform, spell_out
from runtime.parallel.data_parallel import Sharded
from runtime.parallel.mesh import own_group
from runtime.parallel.zero_plus import BLOCK, BlockGather, BlockScatter, blocks
from tests.runtime.ranks import on_ranks
from tests.support.training import trainer_of
from tests.support.training_cases import BATCH, job

STEPS = 8
ALL_THREE = ZeroPlus(
    quantized_weights=True, hpz_partition_size=2, quantized_gradients=True
)
CHOICES = {
    "none": ZeroPlus(),
    "qwZ": ZeroPlus(quantized_weights=True),
    "hpZ": ZeroPlus(hpz_partition_size=2),
    "qgZ": ZeroPlus(hpz_partition_size=2, quantized_gradients=True),
    "all": ALL_THREE,
}


@pytest.mark.parametrize("bits", [4, 8])
@given(
    rows=st.integers(1, 3), columns=st.integers(1, 2 * BLOCK + 3), seed=st.integers()
)
def test_blocks_are_half_a_step_away_at_most(
    bits: int, rows: int, columns: int, seed: int
) -> None:
    torch.manual_seed(seed)
    values = torch.randn(rows, columns)
    made = blocks(values, bits)
    back = made.back(columns)
    half = values.abs().max() / (2 ** (bits - 1) - 1) / 2
    assert back.shape == values.shape
    assert (back - values).abs().max() <= half * (1 + 1e-5)
    assert made.codes.nbytes <= rows * (columns + BLOCK) * bits / 8
    torch.testing.assert_close(blocks(0 * values, bits).back(columns), 0 * values)


def summed(rank: int) -> dict[str, Any]:
    near = own_group([[0, 1], [2, 3]])
    far = own_group([[0, 2], [1, 3]])
    assert near is not None
    assert far is not None
    torch.manual_seed(rank)
    own = torch.randn(4 * 2 * BLOCK)
    exact, found = own.clone(), torch.empty(2 * BLOCK)
    dist.all_reduce(exact)
    scatter = BlockScatter(near, far)
    assert dist.group.WORLD is not None
    scatter(found, own, dist.group.WORLD, dist.ReduceOp.SUM)
    gather, whole = BlockGather(), torch.empty(4 * 2 * BLOCK)
    gather(whole, exact.chunk(4)[rank].contiguous(), dist.group.WORLD)
    return {
        "wrong": float((found - exact.chunk(4)[rank]).abs().max()),
        "largest": float(own.abs().max()),
        "gathered": float((whole - exact).abs().max() / exact.abs().max()),
        "sent": scatter.sent_bytes,
        "between": scatter.between_bytes,
        "gathered_bytes": gather.sent_bytes,
    }


def test_sums_of_blocks_are_bounded_and_so_are_their_bytes() -> None:
    """Half a step of each summand, and of each node's sum: steps of a seventh."""
    found = on_ranks(4, summed)
    largest, scale_bytes = max(one["largest"] for one in found), 4 / BLOCK
    bound = (4 * largest + 2 * 2 * largest) / 7 / 2
    numbers = 4 * 2 * BLOCK
    each = 0.5 + scale_bytes
    for one in found:
        assert 0 < one["wrong"] <= bound
        assert 0 < one["gathered"] <= 1 / 127 / 2 * (1 + 1e-5)
        # Half of all to the neighbour, half of a half to the other node.
        assert one["sent"] == numbers * each * (1 / 2 + 1 / 4)
        assert one["between"] == numbers * each / 4
        assert one["gathered_bytes"] == 3 * numbers / 4 * (1 + scale_bytes)


def trained(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, plus in CHOICES.items():
        choice = Uniform(
            dp=4, zero=3, zero_group=4, precision="fp32", zero_plus=plus, micro_batch=1
        )
        layout = spell_out(choice, job("gpt").graph, BATCH)
        trainer = trainer_of(layout)
        (held,) = trainer.stages
        first = trainer.trial(0)
        losses = [trainer.step(number).loss for number in range(STEPS)]
        assert isinstance(held.parallel, Sharded)
        found[name] = {
            "losses": losses,
            "gradients": torch.cat([one.flatten() for one in first.values()]),
            "sent": held.parallel.sent_bytes,
            "second": max(
                one.post_forward_mesh_info.shard_mesh_size
                for one in held.parallel.groups()
                if one.post_forward_mesh_info is not None
            ),
        }
    return found


def test_it_trains_like_zero_3() -> None:
    ranks = on_ranks(4, trained)
    exact = {name: [one[name] for one in ranks] for name in CHOICES}
    whole = torch.cat([one["gradients"] for one in exact["none"]])
    apart = {
        name: float(
            (torch.cat([one["gradients"] for one in some]) - whole).norm()
            / whole.norm()
        )
        for name, some in exact.items()
    }
    losses = {name: some[0]["losses"] for name, some in exact.items()}
    second = {name: some[0]["second"] for name, some in exact.items()}
    assert second == {"none": 4, "qwZ": 4, "hpZ": 2, "qgZ": 2, "all": 2}
    assert exact["none"][0]["sent"] == 0 < exact["qwZ"][0]["sent"]
    print(apart, losses)
    assert apart["hpZ"] < 1e-6
    assert losses["hpZ"] == pytest.approx(losses["none"], rel=1e-6)
    assert 0 < apart["qwZ"] < 0.05
    assert 0 < apart["qgZ"] < 0.25
    for name in ("qwZ", "qgZ", "all"):
        assert losses[name] != losses["none"]
        assert losses[name] == pytest.approx(losses["none"], rel=0.01)
    assert losses["all"][-1] < losses["all"][0]
