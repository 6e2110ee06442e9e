"""A decoder, or the part of it that one pipeline stage holds, and its first values.

Parameters keep the names that they have in the whole model, whichever stage holds
them: `embedding.table.weight`, `layers.3.attention.qkv.weight`, `head.weight`. Their
first values come from those names, so that they are the same for every layout: normal
with deviation 0.02; the two products that write to the residual stream are scaled by
1/√(2·layers) (Radford et al. 2019, section 2.3); norms 1, biases 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.errors import Unsupported
from profiles.models import DecoderSpec, Job
from runtime.models.attention import Attention, norm
from runtime.models.mlp import Mlp
from runtime.models.moe import ExpertMlp

DEVIATION = 0.02
_ONTO_STREAM = ("projection.weight", "down.weight")


def initialise(
    module: nn.Module, *, prefix: str, layers: int, seed: int, device: torch.device
) -> None:
    """Give a module on the meta device its storage on *device* and first values."""
    module.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            _fill(parameter, f"{prefix}{name}", layers, seed)


def _fill(parameter: Tensor, name: str, layers: int, seed: int) -> None:
    if name.endswith("bias"):
        parameter.zero_()
    elif "norm." in name:
        parameter.fill_(1.0)
    else:
        scale = (2 * layers) ** -0.5 if name.endswith(_ONTO_STREAM) else 1.0
        source = torch.Generator(parameter.device).manual_seed(_number(name, seed))
        parameter.normal_(0.0, DEVIATION * scale, generator=source)


def _number(name: str, seed: int) -> int:
    # A tied head is the table under another name, on another stage.
    known = name.replace("head.weight", "embedding.table.weight")
    digest = hashlib.sha256(f"{seed} {known}".encode()).digest()
    return int.from_bytes(digest[:7])


class Dropout(nn.Module):
    """Zeroes a share of its input while training; the identity where the share is 0.

    Its mask takes one byte an element; `F.dropout` keeps floats on a CPU.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, stream: Tensor) -> Tensor:
        if not self.share or not self.training:
            return stream
        return torch.native_dropout(stream, self.share, True)[0]


class Embedding(nn.Module):
    """(batch, seq_len) tokens → (batch, seq_len, hidden)."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.table = nn.Embedding(spec.vocab, spec.hidden)
        self.positions = (
            Positions(spec.max_positions, spec.hidden)
            if spec.position == "learned"
            else None
        )
        self.dropout = Dropout(spec.embedding_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.table(tokens)
        if self.positions is not None:
            stream = self.positions(stream)
        return self.dropout(stream)  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Adds the row of its place to each token: of `places`, from the first without.

    Where ranks share them, this one has the *part*-th tokens.
    """

    def __init__(self, places: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(places, hidden))
        self.places: Tensor | None = None
        self.part = 0

    def forward(self, stream: Tensor) -> Tensor:
        length = stream.shape[1]
        rows = slice(self.part * length, (self.part + 1) * length)
        if self.places is None:
            return stream + self.weight[rows]
        return stream + self.weight[self.places[rows].to(self.weight.device)]


class CrossEntropy(nn.Module):
    """Logits (batch, seq_len, vocab) and targets (batch, seq_len) → nats a token."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the layer called *number*."""

    def __init__(self, spec: DecoderSpec, number: int) -> None:
        super().__init__()
        self.input_norm = norm(spec, spec.hidden)
        self.attention = Attention(spec, number)
        self.mlp_norm = norm(spec, spec.hidden)
        self.mlp: nn.Module = (
            ExpertMlp(spec, spec.moe)
            if spec.moe is not None and spec.moe.holds(number)
            else Mlp(spec, spec.ffn_hidden)
        )
        self.dropout = Dropout(spec.dropout)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.dropout(self.attention(self.input_norm(stream)))
        made: Tensor = stream + self.dropout(self.mlp(self.mlp_norm(stream)))
        return made


class Stage(nn.Module):
    """The layers called *names*, in model order: a whole model or a part of one.

    Called with tokens where it holds the embedding, else with hidden states; gives
    hidden states, or the mean loss where it holds the head and is given targets.
    """

    def __init__(self, spec: DecoderSpec, names: Sequence[str]) -> None:
        super().__init__()
        require_trainable(spec)
        self.spec = spec
        self.embedding = Embedding(spec) if "embedding" in names else None
        self.layers = nn.ModuleDict(
            {name: Layer(spec, int(name)) for name in names if name.isdigit()}
        )
        self.final_norm = norm(spec, spec.hidden) if "final_norm" in names else None
        self.head = (
            nn.Linear(spec.hidden, spec.vocab, bias=False) if "head" in names else None
        )
        self.loss = CrossEntropy() if self.head is not None else None
        # What is called one after another; recompute may put layers together.
        self.body: list[Callable[[Tensor], Tensor]] = list(self.layers.values())
        self.tie()

    def tie(self) -> None:
        """One parameter for table and head, where the spec ties and both are here."""
        if self.spec.tied_embeddings and self.head and self.embedding:
            self.head.weight = self.embedding.table.weight

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> Tensor:
        stream = inputs if self.embedding is None else self.embedding(inputs)
        for part in self.body:
            stream = part(stream)
        if self.final_norm is not None:
            stream = self.final_norm(stream)
        if self.head is None or self.loss is None:
            return stream
        logits = self.head(stream)
        return logits if targets is None else self.loss(logits, targets)  # type: ignore[no-any-return]


def decoder_of(job: Job) -> DecoderSpec:
    """The decoder that *job* trains; raises Unsupported for other families."""
    if not isinstance(job.spec, DecoderSpec):
        raise Unsupported(
            f"{job.model} is of family {job.spec.family!r}, which is not trained yet; "
            "decoders are"
        )
    require_trainable(job.spec)
    reach = job.spec.reach
    if reach is not None and reach < job.seq_len:
        raise Unsupported(
            f"{job.model} attends to {reach} tokens of {job.seq_len}, which is not "
            "trained yet; a sequence no longer than the window is"
        )
    return job.spec


def require_trainable(spec: DecoderSpec) -> None:
    """Raise Unsupported for a decoder that these modules are not."""
    for part, what in (
        (spec.recurrence, "a recurrence beside attention"),
        (spec.splits_layers, "layers of attention or an MLP alone"),
        (spec.attention_gate, "a gate on attention"),
        (spec.moe is not None and spec.moe.latent, "experts of a latent width"),
        (spec.attention_sinks, "attention sinks"),
        (spec.mla, "latent attention"),
        (spec.parallel_block, "attention and MLP side by side"),
        (spec.position == "alibi", "alibi positions"),
        (spec.multi_token_heads, "multi-token heads"),
    ):
        if part:
            raise Unsupported(
                f"a model with {what} is not trained yet; decoders with learned, "
                "rotary or no positions are, dense or with experts"
            )
    if spec.not_computed:
        raise Unsupported(
            f"a model with {', '.join(spec.not_computed)} is not trained yet; "
            "leave it out of the configuration"
        )
