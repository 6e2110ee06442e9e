"""Which tensors of a Hugging Face folder are which of our parameters.

A `Bond` ties some of ours to some of theirs, both ways: queries, keys and values are
one product here, the experts of a layer one stack. What a bond does it does to whole
tensors; it is small, so that little is in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from profiles.errors import Unsupported
from profiles.files import shown
from profiles.models import DecoderSpec, MoeSpec

Tensors = list[Tensor]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bond:
    """*ours* and *theirs* (with their shapes), and what makes one of the other; where
    it only *reads*, another bond writes theirs."""

    ours: tuple[str, ...]
    theirs: Mapping[str, Shape]
    join: Callable[[Tensors], Tensors] = list  # theirs → ours
    part: Callable[[Tensors], Tensors] = list  # ours → theirs
    reads: bool = False

    def shapes(self) -> dict[str, Shape]:
        """Those of ours."""
        empty = [torch.empty(shape, device="meta") for shape in self.theirs.values()]
        made = zip(self.ours, self.join(empty), strict=True)
        return {name: tuple(one.shape) for name, one in made}


@dataclass(frozen=True, slots=True)
class _Mixture:
    """Where a family keeps the MLP of a layer, and how it calls what is in it."""

    mlp: str
    router: str = "gate"
    expert: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


_DENSE: Final = _Mixture("mlp")
_ROTARY: Final = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _DENSE),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _DENSE),
    "mixtral": _Mixture("block_sparse_moe", expert=("w1", "w3", "w2")),
    "llama4_text": _Mixture("feed_forward", router="router"),
}
# What some folders hold beside parameters: masks and angles, computed here.
COMPUTED: Final = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
# The whole model in front of a name, where a folder says it.
PREFIX: Final = {
    "gpt2": "transformer.",
    "dbrx": "transformer.",
    **dict.fromkeys(_ROTARY, "model."),
}


def bonds(spec: DecoderSpec, kind: str) -> Iterator[Bond]:
    """All of a model of *spec*, in model order; *kind* is the configuration's
    `model_type`. Raises Unsupported for one whose names are not known."""
    if kind == "gpt2":
        yield from _gpt2(spec)
    elif kind == "dbrx":
        yield from _dbrx(spec)
    elif kind in _ROTARY:
        yield from _rotary(spec, kind)
    else:
        raise Unsupported(
            f"weights of model_type {shown(kind)} are not read or written; those of "
            f"{', '.join(PREFIX)} are"
        )


def _ends(spec: DecoderSpec, table: str, norm: str) -> tuple[Bond, list[Bond]]:
    """What is before the layers, and what comes after them."""
    shape = (spec.vocab, spec.hidden)
    first = Bond(("embedding.table.weight",), {table: shape})
    last = _norm("final_norm", norm, spec.hidden, bias=_norm_bias(spec))
    theirs = {table if spec.tied_embeddings else "lm_head.weight": shape}
    last.append(Bond(("head.weight",), theirs, reads=spec.tied_embeddings))
    return first, last


def _norm_bias(spec: DecoderSpec) -> bool:
    return spec.norm == "layernorm" and spec.norm_bias


def _norm(ours: str, theirs: str, width: int, *, bias: bool) -> list[Bond]:
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Bond((f"{ours}.{one}",), {f"{theirs}.{one}": (width,)}) for one in kinds]


def _linear(ours: str, theirs: str, shape: Shape, *, bias: bool) -> Iterator[Bond]:
    yield Bond((f"{ours}.weight",), {f"{theirs}.weight": shape})
    if bias:
        yield Bond((f"{ours}.bias",), {f"{theirs}.bias": shape[:1]})


def _gpt2(spec: DecoderSpec) -> Iterator[Bond]:
    """Its products are transposed."""
    hidden, to, of = spec.hidden, "transformer", "layers"
    first, last = _ends(spec, f"{to}.wte.weight", f"{to}.ln_f")
    yield first
    places = {f"{to}.wpe.weight": (spec.max_positions, hidden)}
    yield Bond(("embedding.positions.weight",), places)
    for number in range(spec.layers):
        ours, theirs = f"{of}.{number}", f"{to}.h.{number}"
        yield from _norm(f"{ours}.input_norm", f"{theirs}.ln_1", hidden, bias=True)
        yield from _norm(f"{ours}.mlp_norm", f"{theirs}.ln_2", hidden, bias=True)
        packed = f"{theirs}.attn.c_attn"
        yield Bond(
            (f"{ours}.attention.qkv.weight",),
            {f"{packed}.weight": (hidden, 3 * hidden)},
            lambda one: [_packed(spec, list(one[0].T.chunk(3)))],
            lambda one: [torch.cat(_unpacked(spec, one[0])).T],
        )
        yield Bond(
            (f"{ours}.attention.qkv.bias",),
            {f"{packed}.bias": (3 * hidden,)},
            lambda one: [_packed(spec, list(one[0].chunk(3)))],
            lambda one: [torch.cat(_unpacked(spec, one[0]))],
        )
        for mine, name, inward, outward in (
            ("attention.projection", "attn.c_proj", hidden, hidden),
            ("mlp.up", "mlp.c_fc", hidden, spec.ffn_hidden),
            ("mlp.down", "mlp.c_proj", spec.ffn_hidden, hidden),
        ):
            turned = {f"{theirs}.{name}.weight": (inward, outward)}
            yield Bond((f"{ours}.{mine}.weight",), turned, _turned, _turned)
            yield Bond((f"{ours}.{mine}.bias",), {f"{theirs}.{name}.bias": (outward,)})
    yield from last


def _turned(one: Tensors) -> Tensors:
    return [tensor.T for tensor in one]


def _rotary(spec: DecoderSpec, kind: str) -> Iterator[Bond]:
    """Llama and what came after it."""
    hidden = spec.hidden
    first, last = _ends(spec, "model.embed_tokens.weight", "model.norm")
    yield first
    for number in range(spec.layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        for mine, name in (
            ("input_norm", "input_layernorm"),
            ("mlp_norm", "post_attention_layernorm"),
        ):
            yield from _norm(f"{ours}.{mine}", f"{theirs}.{name}", hidden, bias=False)
        neighbours = kind == "llama4_text"
        yield from _attention(spec, ours, theirs, neighbours=neighbours)
        where = _ROTARY[kind]
        to, of = f"{ours}.mlp", f"{theirs}.{where.mlp}"
        if spec.moe is not None and spec.moe.holds(number):
            yield from _experts(spec, spec.moe, to, of, where)
        else:
            yield from _mlp(spec, to, of, spec.ffn_hidden)
    yield from last


def _attention(
    spec: DecoderSpec, ours: str, theirs: str, *, neighbours: bool
) -> Iterator[Bond]:
    """One product of three; where *neighbours* turn together, halves do here."""
    heads = (spec.heads, spec.kv_heads, spec.kv_heads)
    rows = [count * spec.head_dim for count in heads]
    join = partial(_joined, spec, neighbours)
    part = partial(_parted, spec, neighbours)
    of, to = f"{theirs}.self_attn", f"{ours}.attention"
    for kind in ("weight", "bias") if spec.attention_bias else ("weight",):
        inward = (spec.hidden,) if kind == "weight" else ()
        parts = {
            f"{of}.{one}_proj.{kind}": (size, *inward)
            for one, size in zip("qkv", rows, strict=True)
        }
        yield Bond((f"{to}.qkv.{kind}",), parts, join, part)
    shape = (spec.hidden, rows[0])
    yield from _linear(f"{to}.projection", f"{of}.o_proj", shape, bias=spec.output_bias)
    for mine, name in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
        if spec.qk_norm:
            width = spec.head_dim
            yield from _norm(f"{to}.{mine}", f"{of}.{name}", width, bias=False)


def _joined(spec: DecoderSpec, neighbours: bool, parts: Tensors) -> Tensors:
    query, key, value = parts
    if neighbours:
        query, key = (_halves(one, spec.head_dim) for one in (query, key))
    return [_packed(spec, [query, key, value])]


def _parted(spec: DecoderSpec, neighbours: bool, ours: Tensors) -> Tensors:
    query, key, value = _unpacked(spec, ours[0])
    if neighbours:
        query, key = (_neighbours(one, spec.head_dim) for one in (query, key))
    return [query, key, value]


def _packed(spec: DecoderSpec, parts: Tensors) -> Tensor:
    """One product's rows: of each key-value head its queries, its key, its value."""
    groups = [one.unflatten(0, (spec.kv_heads, -1, spec.head_dim)) for one in parts]
    return torch.cat(groups, dim=1).flatten(0, 2)


def _unpacked(spec: DecoderSpec, packed: Tensor) -> Tensors:
    queries = spec.heads // spec.kv_heads
    groups = packed.unflatten(0, (spec.kv_heads, queries + 2, spec.head_dim))
    return [one.flatten(0, 2) for one in groups.split((queries, 1, 1), dim=1)]


def _halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of heads whose neighbours turn together, as heads whose halves do."""
    pairs: Tensor = rows.unflatten(0, (-1, head_dim // 2, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


def _neighbours(rows: Tensor, head_dim: int) -> Tensor:
    halves: Tensor = rows.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)


def _mlp(spec: DecoderSpec, ours: str, theirs: str, width: int) -> Iterator[Bond]:
    for name, shape in (
        ("gate", (width, spec.hidden)),
        ("up", (width, spec.hidden)),
        ("down", (spec.hidden, width)),
    ):
        yield from _linear(
            f"{ours}.{name}", f"{theirs}.{name}_proj", shape, bias=spec.mlp_bias
        )


def _experts(
    spec: DecoderSpec, moe: MoeSpec, ours: str, theirs: str, where: _Mixture
) -> Iterator[Bond]:
    hidden, width = spec.hidden, moe.expert_ffn_hidden
    yield from _linear(
        f"{ours}.router.linear",
        f"{theirs}.{where.router}",
        (moe.experts, hidden),
        bias=moe.router_bias,
    )
    of, to = f"{theirs}.experts", f"{ours}.experts"
    if where.router == "router":  # Llama 4 has stacks, and multiplies from the right
        yield Bond(
            (f"{to}.gate.weight", f"{to}.up.weight"),
            {f"{of}.gate_up_proj": (moe.experts, hidden, 2 * width)},
            lambda one: list(one[0].transpose(1, 2).chunk(2, dim=1)),
            lambda two: [torch.cat(two, dim=1).transpose(1, 2)],
        )
        yield Bond(
            (f"{to}.down.weight",),
            {f"{of}.down_proj": (moe.experts, width, hidden)},
            lambda one: [one[0].transpose(1, 2)],
            lambda one: [one[0].transpose(1, 2)],
        )
    else:
        for mine, name, shape in zip(
            ("gate", "up", "down"),
            where.expert,
            ((width, hidden), (width, hidden), (hidden, width)),
            strict=True,
        ):
            each = {f"{of}.{n}.{name}.weight": shape for n in range(moe.experts)}
            yield Bond((f"{to}.{mine}.weight",), each, _stacked, _unstacked)
    if moe.shared_experts:
        shared = moe.shared_experts * moe.shared_ffn_hidden
        yield from _mlp(spec, f"{ours}.shared", f"{theirs}.shared_expert", shared)
    if moe.shared_gate:
        gate = {f"{theirs}.shared_expert_gate.weight": (1, hidden)}
        yield Bond((f"{ours}.shared_gate.weight",), gate)


def _stacked(parts: Tensors) -> Tensors:
    return [torch.stack(parts)]


def _unstacked(ours: Tensors) -> Tensors:
    return list(ours[0].unbind())


def _dbrx(spec: DecoderSpec) -> Iterator[Bond]:
    moe = spec.moe
    assert moe is not None
    hidden, width, count = spec.hidden, moe.expert_ffn_hidden, moe.experts
    sizes = [one * spec.head_dim for one in (spec.heads, spec.kv_heads, spec.kv_heads)]
    flat, stack = (count * width, hidden), (count, width)
    first, last = _ends(spec, "transformer.wte.weight", "transformer.norm_f")
    yield first
    for number in range(spec.layers):
        ours, theirs = f"layers.{number}", f"transformer.blocks.{number}"
        of, experts = f"{theirs}.norm_attn_norm", f"{theirs}.ffn.experts.mlp"
        yield from _norm(f"{ours}.input_norm", f"{of}.norm_1", hidden, bias=False)
        yield from _norm(f"{ours}.mlp_norm", f"{of}.norm_2", hidden, bias=False)
        yield Bond(
            (f"{ours}.attention.qkv.weight",),
            {f"{of}.attn.Wqkv.weight": (sum(sizes), hidden)},
            lambda one: [_packed(spec, list(one[0].split(sizes)))],
            lambda one: [torch.cat(_unpacked(spec, one[0]))],
        )
        shape = (hidden, sizes[0])
        projection = {f"{of}.attn.out_proj.weight": shape}
        yield Bond((f"{ours}.attention.projection.weight",), projection)
        router = {f"{theirs}.ffn.router.layer.weight": (count, hidden)}
        yield Bond((f"{ours}.mlp.router.linear.weight",), router)
        for mine, name in (("gate", "w1"), ("up", "v1")):
            yield Bond(
                (f"{ours}.mlp.experts.{mine}.weight",),
                {f"{experts}.{name}": flat},
                lambda one: [one[0].unflatten(0, stack)],
                lambda one: [one[0].flatten(0, 1)],
            )
        yield Bond(
            (f"{ours}.mlp.experts.down.weight",),
            {f"{experts}.w2": flat},
            lambda one: [one[0].unflatten(0, stack).transpose(1, 2)],
            lambda one: [one[0].transpose(1, 2).flatten(0, 1)],
        )
    yield from last
