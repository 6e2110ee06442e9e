"""Context parallelism without ranks: who has which tokens, and blocks that add up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from runtime.models.precision import autocast, policy
from runtime.parallel.context_parallel import (
    Merged,
    block,
    block_backward,
    in_order,
    in_pieces,
    places,
)

LENGTH, HEADS, KV_HEADS, WIDTH = 16, 4, 2, 8
KINDS = ("ring", "all-gather", "ulysses")


def tensors(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query = torch.randn(2, HEADS, LENGTH, WIDTH, dtype=dtype)
    key, value = torch.randn(2, 2, KV_HEADS, LENGTH, WIDTH, dtype=dtype)
    return query, key, value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_token_is_on_one_rank_in_order(kind: str, ranks: int) -> None:
    parts = [places(kind, rank=r, ranks=ranks, seq_len=LENGTH) for r in range(ranks)]
    assert sorted(torch.cat(parts).tolist()) == list(range(LENGTH))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    assert {len(part) for part in parts} == {LENGTH // ranks}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zig_zag_gives_every_rank_as_much_of_a_causal_mask(ranks: int) -> None:
    seen = {
        int((places("ring", rank=r, ranks=ranks, seq_len=LENGTH) + 1).sum())
        for r in range(ranks)
    }
    assert len(seen) == 1


def test_a_sequence_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="14 tokens do not split into 4 chunks"):
        places("ring", rank=0, ranks=2, seq_len=14)
    assert len(places("ulysses", rank=0, ranks=2, seq_len=14)) == 7


def attended(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention of four chunks, block by block, the last keys first."""
    merged, chunk = Merged(query), LENGTH // 4
    for number in range(4):
        rows = slice(number * chunk, (number + 1) * chunk)
        for other in range(number, -1, -1):
            columns = slice(other * chunk, (other + 1) * chunk)
            keys, values = key[:, :, columns], value[:, :, columns]
            diagonal = other == number
            merged.add(block(query[:, :, rows], keys, values, causal=diagonal), rows)
    return merged.result()


def test_blocks_add_up_to_attention() -> None:
    given = tensors()
    output, lse = attended(*given)
    torch.testing.assert_close(output, unfused(*given))
    torch.testing.assert_close(lse, block(*given, causal=True)[1])


def test_blocks_are_merged_in_32_bits() -> None:
    given = tensors(torch.bfloat16)
    output, lse = attended(*given)
    assert (output.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    wanted = unfused(*(one.float() for one in given))
    torch.testing.assert_close(output.float(), wanted, atol=2e-2, rtol=2e-2)


def test_gradients_of_blocks_add_up_to_those_of_attention() -> None:
    leaves = [one.requires_grad_() for one in tensors()]
    torch.manual_seed(1)
    mixed = unfused(*leaves)
    upward = torch.randn_like(mixed)
    mixed.backward(upward)
    query, key, value = (one.detach() for one in leaves)
    output, lse = block(query, key, value, causal=True)
    half = LENGTH // 2
    first, second = slice(0, half), slice(half, LENGTH)
    found = [torch.zeros_like(one) for one in (query, key, value)]
    for rows, columns, causal in (
        (first, first, True),
        (second, second, True),
        (second, first, False),
    ):
        parts = block_backward(
            *(upward[:, :, rows], query[:, :, rows]),
            *(key[:, :, columns], value[:, :, columns]),
            *(output[:, :, rows], lse[:, :, rows]),
            causal=causal,
        )
        for whole, part, where in zip(
            found, parts, (rows, columns, columns), strict=True
        ):
            whole[:, :, where] += part
    for whole, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(whole, leaf.grad)


@pytest.mark.parametrize("ranks", [2, 4])
def test_gathered_pieces_are_put_in_order_and_back(ranks: int) -> None:
    ordered = torch.arange(LENGTH).view(1, 1, 1, LENGTH, 1)
    pieces = torch.cat(
        [
            ordered[:, :, :, places("ring", rank=r, ranks=ranks, seq_len=LENGTH)]
            for r in range(ranks)
        ],
        dim=3,
    )
    assert torch.equal(in_order(pieces, ranks), ordered)
    assert torch.equal(in_pieces(ordered, ranks), pieces)


def test_custom_functions_follow_autocast() -> None:
    wide = torch.ones(2)
    assert autocast(wide, None) == [wide, None]
    with policy("amp-bf16").computing("cpu"):
        cast, missing = autocast(wide, None)
    assert cast.dtype is torch.bfloat16
    assert missing is None


def unfused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention through the scores, in plain PyTorch."""
    repeat = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(repeat, dim=1)
    value = value.repeat_interleave(repeat, dim=1)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    length = query.shape[2]
    mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    mixed: Tensor = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value
    return mixed
