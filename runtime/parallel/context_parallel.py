"""The core of attention over a sequence that is split across ranks, in three ways.

ring         keys and values go round while each rank attends to what is there:
             step 0 to its own keys, under the causal mask; step i to those of rank
             r − i, unmasked: of a rank before us (r − i ≥ 0) the first half, else all
             of them, for the second half of our queries, so that every step is half of
             a square. In backward the gradient of a rank's keys travels one step behind
             them, and n − 1 steps bring it home (Liu et al., 2023)
all-gather   each rank gathers all keys and values in the order of the sequence, and
             attends with its two chunks of queries: to the keys before a chunk, and to
             its own under the mask. Backward gathers once more, and scatters their
             gradient (Llama 3, section 3.3.2)
ulysses      an all-to-all from a part of the sequence to a part of the heads, causal
             attention over the whole sequence, and an all-to-all of the output back.
             Key-value heads fewer than ranks are repeated (DeepSpeed-Ulysses, Jacobs et
             al., 2023, section 3)

Rank i of n has, for ring and all-gather, the i-th of 2n chunks from the head and the
i-th from the tail, so that a causal mask leaves every rank as much work (zig-zag); for
ulysses the i-th of n parts.

A block's output o_b comes with the logarithm of its softmax's denominator, l_b. Blocks
over disjoint keys add up (Milakov and Gimelshein, 2018; Dao et al., 2022, section 3.1):

    l = log Σ_b exp l_b,    o = Σ_b exp(l_b − l) · o_b

and with o and l of the whole, each block's gradient is a backward of its own. The
kernels are those of `scaled_dot_product_attention`, called by their own names since it
does not hand on l. Queries are (batch, heads, queries, head_dim), keys and values
(batch, kv_heads, keys, head_dim), l is (batch, heads, queries) in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from runtime.models import Layer, Stage, autocast
from runtime.parallel.collectives import (
    Group,
    all_to_all,
    start_all_gather,
    start_reduce_scatter,
    start_shift,
)

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
# The memory-efficient kernel of CUDA pads the queries of l to whole tiles.
_TILE = 32


def block(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Output and l of a block; *causal* where queries and keys are the same tokens."""
    if query.device.type == "cpu":
        made = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal
        )
        return made[0], made[1]
    key, value = (_for_each_query(one, query) for one in (key, value))
    if query.dtype in _HALF:
        made = _aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, False
        )
        return made[0], made[1]
    made = _aten._scaled_dot_product_efficient_attention(
        query, key, value, None, True, 0.0, causal
    )
    return made[0], made[1][:, :, : query.shape[2]]


def block_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a block's query, key and value; *output* and *lse* of the whole."""
    if query.device.type == "cpu":
        made = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, output, lse, 0.0, causal
        )
        return made[0], made[1], made[2]
    keys, values = (_for_each_query(one, query) for one in (key, value))
    call = _flash_backward if query.dtype in _HALF else _efficient_backward
    of_query, *others = call(gradient, query, keys, values, output, lse, causal)
    of_key, of_value = (_of_each_key(one, key) for one in others)
    return of_query, of_key, of_value


class Merged:
    """Blocks of *like*'s queries merged as they come, in fp32."""

    def __init__(self, like: Tensor) -> None:
        self._dtype = like.dtype
        self._output = torch.zeros_like(
            like, dtype=torch.float32, memory_format=torch.contiguous_format
        )
        self._lse = like.new_full(like.shape[:-1], -torch.inf, dtype=torch.float32)

    def add(self, made: tuple[Tensor, Tensor], rows: slice) -> None:
        """Merge a block of the queries *rows*."""
        output, lse = made[0].float(), made[1]
        known = self._lse[:, :, rows]
        both = torch.logaddexp(known, lse)
        share, more = (known - both).exp(), (lse - both).exp()
        self._output[:, :, rows] = self._output[:, :, rows] * share.unsqueeze(
            -1
        ) + output * more.unsqueeze(-1)
        self._lse[:, :, rows] = both

    def result(self) -> tuple[Tensor, Tensor]:
        """Output, in the queries' precision, and l of the whole."""
        return self._output.to(self._dtype), self._lse


def _flash_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    causal: bool,
) -> tuple[Tensor, ...]:
    unused = torch.empty(0, dtype=torch.int64, device=query.device)
    found: tuple[Tensor, ...] = _aten._scaled_dot_product_flash_attention_backward(
        gradient,
        *(query, key, value, output, lse.contiguous()),
        *(None, None, query.shape[2], key.shape[2], 0.0, causal),
        *(unused, unused),
    )
    return found


def _efficient_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    causal: bool,
) -> tuple[Tensor, ...]:
    unused = torch.empty((), dtype=torch.int64, device=query.device)
    short = -lse.shape[-1] % _TILE
    padded = torch.nn.functional.pad(lse, (0, short), value=torch.inf)
    found: tuple[Tensor, ...] = _aten._scaled_dot_product_efficient_attention_backward(
        gradient,
        *(query, key, value, None, output, padded, unused, unused, 0.0),
        *([True, True, True, False], causal),
    )
    return found[:3]


def _for_each_query(shared: Tensor, query: Tensor) -> Tensor:
    """Key or value heads repeated for the query heads that share them."""
    return shared.repeat_interleave(query.shape[1] // shared.shape[1], dim=1)


def _of_each_key(gradient: Tensor, shared: Tensor) -> Tensor:
    """The transpose of `_for_each_query`."""
    summed: Tensor = gradient.unflatten(1, (shared.shape[1], -1)).sum(2)
    return summed


class Core(nn.Module):
    """The core of attention, over the ranks of *group*."""

    function: type[torch.autograd.Function]

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed: Tensor = self.function.apply(*autocast(query, key, value), self.group)
        return mixed


ALL = slice(None)


class _Step(NamedTuple):
    """Keys and values that are here, and which queries see which of them."""

    keys: Tensor  # (2, batch, kv_heads, tokens, head_dim): of keys, of values
    rows: slice
    columns: slice
    causal: bool


def _round(own: Tensor, group: Group) -> Iterator[_Step]:
    """The steps of one round; the next keys travel while a step is carried out."""
    here, half = own, own.shape[3] // 2
    for number in range(group.size()):
        last = number == group.size() - 1
        coming = None if last else start_shift(here, group)
        if number == 0:
            yield _Step(here, ALL, ALL, causal=True)
        elif number <= group.rank():
            yield _Step(here, ALL, slice(0, half), causal=False)
        else:
            yield _Step(here, slice(half, None), ALL, causal=False)
        if coming is not None:
            here = coming.wait()


def _attended(query: Tensor, steps: Iterable[_Step]) -> tuple[Tensor, Tensor]:
    """Output and l of *query* over all *steps*."""
    merged = Merged(query)
    for step in steps:
        keys, values = step.keys[:, :, :, step.columns]
        made = block(query[:, :, step.rows], keys, values, causal=step.causal)
        merged.add(made, step.rows)
    return merged.result()


def _gradients(
    step: _Step, made: Tensor, query: Tensor, output: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Of a step's rows of queries, and of its columns of keys and values together."""
    keys, values = step.keys[:, :, :, step.columns]
    of_rows, *others = block_backward(
        *(made[:, :, step.rows], query[:, :, step.rows], keys, values),
        *(output[:, :, step.rows], lse[:, :, step.rows]),
        causal=step.causal,
    )
    return of_rows, torch.stack(others)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Group
    ) -> Tensor:
        output, lse = _attended(query, _round(torch.stack((key, value)), group))
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.group = group
        return output

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        of_query = torch.zeros_like(query, dtype=torch.float32)
        own = travelling = None
        for step in _round(torch.stack((key, value)), ctx.group):
            of_rows, of_columns = _gradients(step, made[0], query, output, lse)
            of_query[:, :, step.rows] += of_rows
            of_keys = torch.zeros_like(step.keys)
            of_keys[:, :, :, step.columns] = of_columns
            if own is None:
                own = of_keys
                continue
            if travelling is not None:
                of_keys += travelling.wait()
            travelling = start_shift(of_keys, ctx.group)
        assert own is not None
        assert travelling is not None, "a ring has two ranks or more"
        of_key, of_value = own + travelling.wait()
        return of_query.to(query.dtype), of_key, of_value, None


STACKED = 3  # the dimension of (keys and values, batch, kv_heads, tokens, head_dim)


def in_order(pieces: Tensor, ranks: int) -> Tensor:
    """Ranks' zig-zag pieces, side by side along the tokens, in the sequence's order."""
    chunks = pieces.unflatten(STACKED, (ranks, 2, -1))
    head, tail = chunks.unbind(STACKED + 1)
    return torch.cat((head, tail.flip(STACKED)), STACKED).flatten(STACKED, STACKED + 1)


def in_pieces(ordered: Tensor, ranks: int) -> Tensor:
    """The inverse of `in_order`."""
    head, tail = ordered.unflatten(STACKED, (2, ranks, -1)).unbind(STACKED)
    pieces = torch.stack((head, tail.flip(STACKED)), STACKED + 1)
    return pieces.flatten(STACKED, STACKED + 2)


def _zig_zag(every: Tensor, group: Group) -> Iterator[_Step]:
    """This rank's two chunks of queries, each with the keys that it sees of *every*."""
    chunk = every.shape[STACKED] // (2 * group.size())
    for half, number in enumerate((group.rank(), 2 * group.size() - 1 - group.rank())):
        rows = slice(half * chunk, (half + 1) * chunk)
        first = number * chunk
        yield _Step(every, rows, slice(first, first + chunk), causal=True)
        if first:
            yield _Step(every, rows, slice(0, first), causal=False)


def _gathered(key: Tensor, value: Tensor, group: Group) -> Tensor:
    own = torch.stack((key, value))
    return in_order(start_all_gather(own, group, dim=STACKED).wait(), group.size())


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Group
    ) -> Tensor:
        every = _gathered(key, value, group)
        output, lse = _attended(query, _zig_zag(every, group))
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.group = group
        return output

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        every = _gathered(key, value, ctx.group)
        of_query = torch.zeros_like(query, dtype=torch.float32)
        of_every = torch.zeros_like(every)
        for step in _zig_zag(every, ctx.group):
            of_rows, of_keys = _gradients(step, made[0], query, output, lse)
            of_query[:, :, step.rows] += of_rows
            of_every[:, :, :, step.columns] += of_keys
        pieces = in_pieces(of_every, ctx.group.size())
        summed = start_reduce_scatter(pieces, ctx.group, dim=STACKED).wait()
        return of_query.to(query.dtype), summed[0], summed[1], None


HEADS, TOKENS = 1, 2  # dimensions of (batch, heads, tokens, head_dim)


def _to_heads(parts: Sequence[Tensor], group: Group) -> list[Tensor]:
    """All tokens of this rank's share of each tensor's heads; one message for all."""
    ranks = group.size()
    shares = [one.unflatten(HEADS, (ranks, -1)).movedim(HEADS, 0) for one in parts]
    heads = [share.shape[2] for share in shares]
    came = all_to_all(torch.cat(shares, dim=2), group)
    return list(came.movedim(0, TOKENS).flatten(TOKENS, TOKENS + 1).split(heads, HEADS))


def _to_tokens(parts: Sequence[Tensor], group: Group) -> list[Tensor]:
    """The inverse of `_to_heads`."""
    ranks, heads = group.size(), [one.shape[HEADS] for one in parts]
    whole = torch.cat(list(parts), dim=HEADS)
    came = all_to_all(whole.unflatten(TOKENS, (ranks, -1)).movedim(TOKENS, 0), group)
    shares = came.split(heads, dim=2)
    return [share.movedim(0, HEADS).flatten(HEADS, HEADS + 1) for share in shares]


class _Ulysses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Group
    ) -> Tensor:
        ctx.group, ctx.kv_heads = group, key.shape[HEADS]
        copies = max(1, group.size() // ctx.kv_heads)
        repeated = [one.repeat_interleave(copies, dim=HEADS) for one in (key, value)]
        given = _to_heads((query, *repeated), group)
        output, lse = block(*given, causal=True)
        ctx.save_for_backward(*given, output, lse)
        (mixed,) = _to_tokens((output,), group)
        return mixed

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        (gradient,) = _to_heads((made[0],), ctx.group)
        found = block_backward(gradient, query, key, value, output, lse, causal=True)
        of_query, *others = _to_tokens(found, ctx.group)
        of_key, of_value = (
            one.unflatten(HEADS, (ctx.kv_heads, -1)).sum(HEADS + 1) for one in others
        )
        return of_query, of_key, of_value, None


def places(kind: str, *, rank: int, ranks: int, seq_len: int) -> Tensor:
    """The places of rank *rank* of *ranks*, rising: int64 (seq_len / ranks,).

    Raises ValueError where the sequence does not divide.

    >>> places("ring", rank=0, ranks=2, seq_len=8).tolist()
    [0, 1, 6, 7]
    >>> places("ulysses", rank=1, ranks=2, seq_len=8).tolist()
    [4, 5, 6, 7]
    """
    chunks = ranks if kind == "ulysses" else 2 * ranks
    if seq_len % chunks:
        raise ValueError(f"{seq_len} tokens do not split into {chunks} chunks")
    parts = torch.arange(seq_len).chunk(chunks)
    if kind == "ulysses":
        return parts[rank]
    return torch.cat((parts[rank], parts[chunks - 1 - rank]))


class RingCore(Core):
    function = _Ring


class GatheredCore(Core):
    function = _Gathered


class UlyssesCore(Core):
    function = _Ulysses


CORES: Final[dict[str, type[Core]]] = {
    "ring": RingCore,
    "all-gather": GatheredCore,
    "ulysses": UlyssesCore,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The ranks that a sequence is split over, and how; no group where it is whole."""

    group: Group | None
    kind: str
    seq_len: int

    @property
    def ranks(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    def places(self) -> Tensor:
        """The places of this rank's tokens in the sequence: int64."""
        if self.group is None:
            return torch.arange(self.seq_len)
        return places(self.kind, rank=self.rank, ranks=self.ranks, seq_len=self.seq_len)


def split(stage: Stage, context: Context) -> None:
    """Make *stage* work on this rank's part of the sequence, in place."""
    if context.group is None:
        return
    mine = context.places()
    if stage.embedding is not None and stage.embedding.positions is not None:
        stage.embedding.positions.places = mine
    for layer in stage.layers.values():
        assert isinstance(layer, Layer), "layers of the catalogue's decoder are split"
        layer.attention.core = CORES[context.kind](context.group)  # type: ignore[assignment]
        layer.attention.places = mine
