"""`runtime.checkpoint.side_by_side`: orders of parts that are split by themselves."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.checkpoint.side_by_side import SideBySide


@st.composite
def orders(draw: st.DrawFn) -> SideBySide:
    ways = draw(st.sampled_from([1, 2, 4]))
    widths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return SideBySide(dim=0, parts=tuple(ways * one for one in widths), ways=ways)


@given(orders())
def test_a_rank_has_its_share_of_each_part(order: SideBySide) -> None:
    whole = torch.arange(sum(order.parts))
    by_rank = order.by_rank(whole)
    assert torch.equal(order.in_order(by_rank), whole)
    wanted = [part.chunk(order.ways) for part in whole.split(list(order.parts))]
    for rank, own in enumerate(by_rank.chunk(order.ways)):
        assert torch.equal(own, torch.cat([some[rank] for some in wanted]))


@given(orders(), st.data())
def test_pieces_of_any_shard_are_the_whole_ones(
    order: SideBySide, data: st.DataObject
) -> None:
    whole = torch.arange(sum(order.parts))
    first = data.draw(st.integers(0, len(whole) - 1))
    count = data.draw(st.integers(0, len(whole) - first))
    shard = order.by_rank(whole)[first : first + count]
    seen = 0
    for begin, place, size in order.pieces(first, count):
        assert torch.equal(shard[place : place + size], whole[begin : begin + size])
        seen += size
    assert seen == count
