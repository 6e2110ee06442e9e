"""Tensor parallelism: Megatron's column and row split, with DTensor parameters.

A parameter that is split is a DTensor over the tp axis (so that checkpoints, ZeRO and
the optimizer know what it is a part of); the mathematics runs on local shards, and the
collectives are those that `costmodel.operators.sharding` derives:

    ColumnLinear   input whole (gathered, if the sequence is split), columns split
    RowLinear      rows split, partial sums reduced (scattered, if the sequence is)
    VocabTable, VocabCrossEntropy    the vocabulary split (Megatron-LM, section 3)

Under sequence parallelism the gathered input is not kept but gathered once more for
the weight gradient (Korthikanti et al., MLSys 2023, section 4.2.2).

A parameter's part on this rank, and the way back of its gradient.

`DTensor.to_local` derives the placement of every gradient anew, which takes a CPU a
tenth of a millisecond for each parameter and micro-batch: as long as a small product.
Here the gradient lies as the parameter does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from runtime.models import (
    AS_GIVEN,
    Deferral,
    Deferred,
    ExpertMlp,
    Layer,
    Mlp,
    Product,
    Stage,
    autocast,
    linear,
)
from runtime.parallel.collectives import (
    Group,
    Pending,
    all_reduce,
    start_all_gather,
    start_all_reduce,
    start_reduce_scatter,
)


def local_shard(parameter: Tensor) -> Tensor:
    """What this rank holds of *parameter*, differentiably; a plain one is whole."""
    if not isinstance(parameter, DTensor):
        return parameter
    shard: Tensor = _LocalShard.apply(parameter)  # type: ignore[no-untyped-call]
    return shard


class _LocalShard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: DTensor) -> Tensor:
        ctx.spec = whole._spec
        local = whole._local_tensor
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> DTensor:
        (gradient,) = made
        return DTensor(gradient.contiguous(), ctx.spec, requires_grad=False)


EXPERTS = ".experts."  # in the names of their parameters
SEQUENCE = 1  # the dimension of (batch, sequence, hidden) that is split


def split(
    stage: Stage,
    mesh: DeviceMesh,
    *,
    sequence_parallel: bool,
    apart: Collection[str] = (),
) -> None:
    """Split every module of *stage* over the tp axis *mesh*, but the layers *apart*."""
    if mesh.size() == 1:
        return
    sp = sequence_parallel
    if stage.embedding is not None:
        table = VocabTable(stage.embedding.table, mesh, sp)
        stage.embedding.table = table  # type: ignore[assignment]
        positions = stage.embedding.positions
        if positions is not None and sp:
            positions.part = mesh.get_local_rank()
    for name, layer in stage.layers.items():
        if name not in apart:
            assert isinstance(layer, Layer), "layers of the catalogue's decoder"
            _split_layer(layer, mesh, sp)
    if stage.head is not None:
        stage.head = ColumnLinear(stage.head, mesh, sp)  # type: ignore[assignment]
        stage.loss = VocabCrossEntropy(mesh.get_group())  # type: ignore[assignment]
        stage.tie()


def _split_layer(layer: Layer, mesh: DeviceMesh, sp: bool) -> None:
    attention, mlp = layer.attention, layer.mlp
    attention.qkv = ColumnLinear(attention.qkv, mesh, sp)  # type: ignore[assignment]
    attention.projection = RowLinear(attention.projection, mesh, sp)  # type: ignore[assignment]
    if not sp:  # the stream is whole on each rank, and dropped alike
        attention.core.part = mesh.get_local_rank()
    if isinstance(mlp, Mlp):
        layer.mlp = SplitMlp(mlp, mesh, sp)
    elif isinstance(mlp, ExpertMlp) and isinstance(mlp.shared, Mlp):
        mlp.shared = SplitMlp(mlp.shared, mesh, sp)


def partial_parameters(
    module: nn.Module, *, sequence_parallel: bool
) -> Iterator[tuple[str, nn.Parameter]]:
    """Whole parameters whose gradient is only a summand on each tp rank.

    Norms of heads always (a rank has some of the heads); the other norms, biases and
    positions under sequence parallelism, where a rank has some of the tokens. Experts
    have ranks of their own. Layers of explicit shardings say it themselves.
    """
    told = dict(_explicit(module))
    for name, parameter in module.named_parameters():
        if name in told:
            if told[name]:
                yield name, parameter
            continue
        if EXPERTS in name:
            continue
        of_heads = ".query_norm." in name or ".key_norm." in name
        if of_heads or (sequence_parallel and not is_split(parameter)):
            yield name, parameter


def _explicit(module: nn.Module) -> Iterator[tuple[str, bool]]:
    """Parameters of layers that say of each whether its gradient is a summand."""
    for prefix, part in module.named_modules():
        for name, partial in getattr(part, "summands", {}).items():
            yield f"{prefix}.{name}" if prefix else name, partial


def is_split(parameter: Tensor) -> bool:
    """Whether each tp rank has a slice of *parameter*, further sharded or not."""
    if not isinstance(parameter, DTensor):
        return False
    axes = parameter.device_mesh.mesh_dim_names or ()
    return "tp" in axes and not parameter.placements[axes.index("tp")].is_replicate()


def placed(full: Tensor, mesh: DeviceMesh, *dims: int | None) -> nn.Parameter:
    """This rank's slice of a parameter, as a DTensor that knows the whole: of each
    axis of *mesh* the dimension that it cuts, or None."""
    local = full.detach()
    for axis, dim in enumerate(dims):
        if dim is not None:
            ranks = mesh.size(axis)
            if full.shape[dim] % ranks:
                raise ValueError(f"{tuple(full.shape)} does not split {ranks} ways")
            local = local.chunk(ranks, dim)[mesh.get_local_rank(axis)]
    whole = DTensor.from_local(
        local.clone(memory_format=torch.contiguous_format),
        mesh,
        [Replicate() if dim is None else Shard(dim) for dim in dims],
        run_check=False,
    )
    return nn.Parameter(whole)


class ColumnLinear(nn.Module):
    """A linear layer whose output features are split."""

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, scattered: bool) -> None:
        super().__init__()
        self.weight = placed(linear.weight, mesh, 0)
        given: Tensor | None = linear.bias
        self.bias = None if given is None else placed(given, mesh, 0)
        self.group, self.scattered = mesh.get_group(), scattered
        self.later: Deferred | None = None
        self.product: Product = AS_GIVEN

    def forward(self, stream: Tensor) -> Tensor:
        (made,) = columns(stream, self)
        return made


def columns(stream: Tensor, *linears: ColumnLinear) -> tuple[Tensor, ...]:
    """Several column-split products of one input, which travels once."""
    first = linears[0]
    weights = [local_shard(item.weight) for item in linears]
    biases = [None if item.bias is None else local_shard(item.bias) for item in linears]
    stream, *rest = autocast(stream, *weights, *biases)
    later, given = first.later, None
    if later is not None and later.on:
        given = Deferral(later, rest)
        rest = given.values
    how = (first.group, first.scattered, given, first.product, len(linears))
    made = _Columns.apply(stream, *how, *rest)  # type: ignore[no-untyped-call]
    return tuple(made)


def summed(partial: Tensor, group: Group, scattered: bool) -> Tensor:
    """The sum of every rank's summand: whole, or scattered along the sequence."""
    return _Summed.apply(partial, group, scattered)  # type: ignore[no-any-return, no-untyped-call]


class RowLinear(nn.Module):
    """A linear layer whose input features are split; the bias is added once."""

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, scattered: bool) -> None:
        super().__init__()
        self.weight = placed(linear.weight, mesh, 1)
        self.bias: nn.Parameter | None = linear.bias
        self.group, self.scattered = mesh.get_group(), scattered
        self.later: Deferred | None = None
        self.product: Product = AS_GIVEN

    def forward(self, stream: Tensor) -> Tensor:
        weight = local_shard(self.weight)
        partial = linear(stream, weight, None, self.later, self.product)
        whole = summed(partial, self.group, self.scattered)
        return whole if self.bias is None else whole + self.bias.to(whole.dtype)


class SplitMlp(nn.Module):
    """The MLP with its inner width split."""

    def __init__(self, mlp: Mlp, mesh: DeviceMesh, scattered: bool) -> None:
        super().__init__()
        self.activation = mlp.activation
        self.gate = (
            None if mlp.gate is None else ColumnLinear(mlp.gate, mesh, scattered)
        )
        self.up = ColumnLinear(mlp.up, mesh, scattered)
        self.down = RowLinear(mlp.down, mesh, scattered)

    def forward(self, stream: Tensor) -> Tensor:
        return self.down(self.activation(*self.inner(stream)))  # type: ignore[no-any-return]

    def inner(self, stream: Tensor) -> tuple[Tensor, ...]:
        """As `Mlp.inner`, of this rank's part of the width."""
        products = (self.up,) if self.gate is None else (self.gate, self.up)
        return columns(stream, *products)


class VocabTable(nn.Module):
    """An embedding table whose rows are split: each rank looks its own tokens up."""

    def __init__(self, table: nn.Embedding, mesh: DeviceMesh, scattered: bool) -> None:
        super().__init__()
        self.weight = placed(table.weight, mesh, 0)
        self.rows = table.num_embeddings // mesh.size()
        self.first = self.rows * mesh.get_local_rank()
        self.group, self.scattered = mesh.get_group(), scattered

    def forward(self, tokens: Tensor) -> Tensor:
        row = tokens - self.first
        elsewhere = (row < 0) | (row >= self.rows)
        found = F.embedding(row.masked_fill(elsewhere, 0), local_shard(self.weight))
        partial = found.masked_fill(elsewhere.unsqueeze(-1), 0)
        return summed(partial, self.group, self.scattered)


class VocabCrossEntropy(nn.Module):
    """Mean cross-entropy of logits whose vocabulary is split."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = _VocabLoss.apply(logits, targets, self.group)  # type: ignore[no-untyped-call]
        return losses.mean()


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor,
        group: Group,
        scattered: bool,
        given: Deferral | None,
        product: Product,
        count: int,
        *rest: Any,
    ) -> tuple[Tensor, ...]:
        weights, biases = rest[:count], rest[count:]
        ctx.save_for_backward(stream, *weights)
        ctx.group, ctx.scattered = group, scattered
        ctx.given, ctx.product = given, product
        ctx.biased = [bias is not None for bias in biases]
        whole = _whole(stream, group, scattered)
        pairs = zip(weights, biases, strict=True)
        return tuple(product.output(whole, weight, bias) for weight, bias in pairs)

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        stream, *weights = ctx.saved_tensors
        group, scattered, biased = ctx.group, ctx.scattered, ctx.biased
        product: Product = ctx.product
        nothing = (None,) * 5
        if ctx.given is not None:
            # The input is gathered once more in W, which has use for it.
            ctx.given.until_w(
                lambda: _of_columns(
                    _whole(stream, group, scattered), made, biased, product
                )
            )
            reducing = _reducing(made, weights, group, scattered, product)
            return (reducing.wait(), *nothing, *(None,) * (2 * len(weights)))
        gathering = start_all_gather(stream, group, dim=SEQUENCE) if scattered else None
        reducing = _reducing(made, weights, group, scattered, product)
        whole = gathering.wait() if gathering else stream
        of_rest = _of_columns(whole, made, biased, product)
        return (reducing.wait(), *nothing, *of_rest)


def _reducing(
    made: Sequence[Tensor],
    weights: Sequence[Tensor],
    group: Group,
    scattered: bool,
    product: Product,
) -> Pending:
    """The gradient of column-split products' input, on its way to those who need it."""
    partial = product.to_input(made[0], weights[0])
    for gradient, weight in zip(made[1:], weights[1:], strict=True):
        partial += product.to_input(gradient, weight)
    if scattered:
        return start_reduce_scatter(partial, group, dim=SEQUENCE)
    return start_all_reduce(partial, group)


def _of_columns(
    whole: Tensor, made: Sequence[Tensor], biased: Sequence[bool], product: Product
) -> list[Tensor | None]:
    """Gradients of the weights, then of the biases."""
    of_weights = [product.to_weight(gradient, whole) for gradient in made]
    of_biases = [
        gradient.flatten(0, -2).sum(0) if has else None
        for gradient, has in zip(made, biased, strict=True)
    ]
    return [*of_weights, *of_biases]


class _Summed(torch.autograd.Function):
    """Partial sums → the sum, whole or scattered along the sequence."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: Group, scattered: bool) -> Tensor:
        ctx.group, ctx.scattered = group, scattered
        if scattered:
            return start_reduce_scatter(partial, group, dim=SEQUENCE).wait()
        ctx.mark_dirty(partial)
        return all_reduce(partial, group)

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = made
        if ctx.scattered:
            gradient = start_all_gather(gradient, ctx.group, dim=SEQUENCE).wait()
        return gradient, None, None


class _VocabLoss(torch.autograd.Function):
    """Negative log-likelihood a token, (batch, seq_len), fp32; keeps the softmax."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group) -> Tensor:
        values = logits.float()
        largest = all_reduce(values.amax(-1), group, largest=True)
        shifted = values - largest.unsqueeze(-1)
        columns_here = values.shape[-1]
        row = targets - columns_here * group.rank()
        elsewhere = (row < 0) | (row >= columns_here)
        row = row.masked_fill(elsewhere, 0).unsqueeze(-1)
        chosen = shifted.gather(-1, row).squeeze(-1).masked_fill(elsewhere, 0)
        softmax = shifted.exp_()
        total, chosen = all_reduce(torch.stack((softmax.sum(-1), chosen)), group)
        softmax.div_(total.unsqueeze(-1))
        ctx.save_for_backward(softmax, row, elsewhere)
        ctx.dtype = logits.dtype
        losses: Tensor = total.log() - chosen
        return losses

    @staticmethod
    def backward(ctx: Any, *made: Tensor) -> tuple[Tensor | None, ...]:
        softmax, row, elsewhere = ctx.saved_tensors
        scale = made[0].unsqueeze(-1)
        gradient = softmax * scale
        chosen = scale.masked_fill(elsewhere.unsqueeze(-1), 0)
        gradient.scatter_add_(-1, row, -chosen)
        return gradient.to(ctx.dtype), None, None


def _whole(stream: Tensor, group: Group, scattered: bool) -> Tensor:
    return start_all_gather(stream, group, dim=SEQUENCE).wait() if scattered else stream
