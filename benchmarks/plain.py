"""Training a GPT on two ranks as one would write it by hand in plain PyTorch.

No line of `runtime` trains here; only the first values of the parameters and the data
are shared, so that both sides do the same work. Each way gives a function that carries
out one step and returns the mean loss of what this rank saw, or None where it saw none:

    ddp        DistributedDataParallel
    fsdp       fully_shard: table, each layer, norm with head, as torchtitan has it
    tp         torch.distributed.tensor.parallel, vocabulary and loss split too
    pipeline   torch.distributed.pipelining, Schedule1F1B
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from runtime.models.decoder import initialise

Batch = tuple[Tensor, Tensor]  # tokens and targets of this rank: (sequences, seq_len)
OneStep = Callable[[Tensor, Tensor], float | None]
LR, BETAS, EPS, DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
CPU = torch.device("cpu")


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden)  # by head, so that heads may be split
        self.projection = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        packed = self.qkv(x).unflatten(-1, (-1, 3, self.head_dim))
        query, key, value = packed.permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, width)
        self.down = nn.Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.input_norm = nn.LayerNorm(spec.hidden)
        self.attention = Attention(spec.hidden, spec.heads)
        self.mlp_norm = nn.LayerNorm(spec.hidden)
        self.mlp = Mlp(spec.hidden, spec.ffn_hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class Positions(nn.Module):
    def __init__(self, places: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, hidden))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.shape[1]]


class Embedding(nn.Module):
    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.table = nn.Embedding(spec.vocab, spec.hidden)
        self.positions = Positions(spec.max_positions, spec.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.positions(self.table(tokens))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Layers *first* to *end* of a GPT with a head of its own; all give logits."""

    def __init__(self, spec: DecoderSpec, first: int, end: int) -> None:
        super().__init__()
        self.embedding = Embedding(spec) if first == 0 else None
        self.layers = nn.ModuleDict({str(n): Layer(spec) for n in range(first, end)})
        last = end == spec.layers
        self.final_norm = nn.LayerNorm(spec.hidden) if last else None
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.final_norm is not None and self.head is not None:
            x = self.head(self.final_norm(x))
        return x


def gpt(job: Job, seed: int, first: int = 0, end: int | None = None) -> Gpt:
    """The model, or a part of it, with the first values that `runtime` gives it."""
    spec = job.spec
    assert isinstance(spec, DecoderSpec)
    with torch.device("meta"):
        model = Gpt(spec, first, spec.layers if end is None else end)
    initialise(model, prefix="", layers=spec.layers, seed=seed, device=CPU)
    return model


def ddp(job: Job, seed: int) -> OneStep:
    model = DistributedDataParallel(gpt(job, seed))
    return _whole(model, adamw([list(model.parameters())]))


def fsdp(job: Job, seed: int) -> OneStep:
    model = gpt(job, seed)
    ends = [model.embedding], [model.final_norm, model.head]
    for units in (ends[0], *([layer] for layer in model.layers.values()), ends[1]):
        fully_shard(units)  # type: ignore[arg-type]
    fully_shard(model)
    return _whole(model, adamw([list(model.parameters())]))


def _whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> OneStep:
    """A rank that has whole layers and a batch of its own."""

    def step(tokens: Tensor, targets: Tensor) -> float:
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    return step


def tp(job: Job, seed: int) -> OneStep:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = gpt(job, seed)
    pair: dict[str, Any] = {
        "embedding.table": RowwiseParallel(input_layouts=Replicate()),
        "layers.*.attention.qkv": ColwiseParallel(),
        "layers.*.attention.projection": RowwiseParallel(),
        "layers.*.mlp.up": ColwiseParallel(),
        "layers.*.mlp.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, pair)
    split = [one for one in model.parameters() if isinstance(one, DTensor)]
    whole = [one for one in model.parameters() if not isinstance(one, DTensor)]
    optimizer = adamw([split, whole])

    def step(tokens: Tensor, targets: Tensor) -> float:
        optimizer.zero_grad()
        with loss_parallel():
            loss = cross_entropy(model(tokens), targets)
            loss.backward()
        clip([one.grad.to_local() for one in split], [one.grad for one in whole])  # type: ignore[union-attr]
        optimizer.step()
        return float(loss.full_tensor())  # type: ignore[attr-defined]

    return step


def pipeline(job: Job, seed: int) -> OneStep:
    rank, ranks, layers = dist.get_rank(), dist.get_world_size(), job.spec.layers  # type: ignore[union-attr]
    each = layers // ranks
    model = gpt(job, seed, rank * each, (rank + 1) * each)
    stage = PipelineStage(model, rank, ranks, CPU)
    schedule = Schedule1F1B(stage, 2 * ranks, loss_fn=cross_entropy)
    optimizer = adamw([list(model.parameters())])

    def step(tokens: Tensor, targets: Tensor) -> float | None:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(tokens)
        elif rank == ranks - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        clip([one.grad for one in model.parameters()], [])  # type: ignore[misc]
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    return step


def adamw(members: Iterable[list[nn.Parameter]]) -> torch.optim.AdamW:
    """Matrices decay, vectors do not; tensors of one kind together."""
    groups = [
        {"params": alike, "weight_decay": decay}
        for every in members
        for alike, decay in (
            ([one for one in every if one.dim() > 1], DECAY),
            ([one for one in every if one.dim() <= 1], 0.0),
        )
        if alike
    ]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, fused=True)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def clip(own: list[Tensor], shared: list[Tensor]) -> None:
    """By the norm over all ranks: of gradients that are each rank's *own*, and of those
    that all have."""
    norm = torch.stack(torch._foreach_norm(own)).square().sum()
    dist.all_reduce(norm)
    if shared:
        norm += torch.stack(torch._foreach_norm(shared)).square().sum()
    factor = (CLIP / (norm.sqrt() + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([*own, *shared], factor)


WAYS: dict[str, Callable[[Job, int], OneStep]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "tp": tp,
    "pipeline": pipeline,
}
