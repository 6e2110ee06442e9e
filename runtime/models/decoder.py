"""A decoder, or the part of it that one pipeline stage holds.

Parameters keep the names that they have in the whole model, whichever stage holds
them: `embedding.table.weight`, `layers.3.attention.qkv.weight`, `head.weight`.

The loss of a language model: mean cross-entropy over the tokens, in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from profiles.errors import Unsupported
from profiles.models import DecoderSpec, Job
from runtime.models.attention import Attention, norm
from runtime.models.embedding import Dropout, Embedding
from runtime.models.mlp import Mlp
from runtime.models.moe import ExpertMlp


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
    if spec.numerics.not_computed:
        raise Unsupported(
            f"a model with {', '.join(spec.numerics.not_computed)} is not trained yet; "
            "leave it out of the configuration"
        )
