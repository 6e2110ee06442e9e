"""Exact parameter counts of decoders, part by part.

For a GPT they add up to L·(12h² + 13h) + (V + s)·h + 2h: Narayanan et al. (SC'21),
section 5.1, with the final norm that its formula leaves out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from profiles.models.decoder.recurrence import (
    COLUMNS,
    MIXED,
    OF_HEADS,
    VALUE,
    recurrence_extents,
)
from profiles.models.spec import (
    DENSE,
    EXPERTS,
    RECURRENT,
    DecoderSpec,
    MlaSpec,
    MoeSpec,
    RecurrenceSpec,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """One transformer layer. `active_mlp` is what one token meets of `mlp`."""

    attention: int
    mlp: int
    norms: int
    active_mlp: int

    @property
    def total(self) -> int:
        return self.attention + self.mlp + self.norms

    @property
    def active(self) -> int:
        return self.attention + self.active_mlp + self.norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A model's parameters. A tied head counts 0: its table is the embedding.

    `layers` holds (layer, how many), dense ones before those with experts. `prediction`
    is what multi-token prediction adds: trained, but not part of what is served.
    """

    embedding: int
    position: int
    layers: tuple[tuple[LayerParameters, int], ...]
    final_norm: int
    head: int
    prediction: int = 0
    met: float = 1.0  # the share of them that a token meets, of an encoder-decoder

    @property
    def total(self) -> int:
        """Parameters of the model, as model cards count them."""
        return self._outside + sum(layer.total * n for layer, n in self.layers)

    @property
    def active(self) -> int:
        """Parameters that one token meets, as often as it does: all but the experts not
        chosen."""
        found = self._outside + sum(layer.active * n for layer, n in self.layers)
        return found if self.met == 1 else round(self.met * found)

    @property
    def trained(self) -> int:
        return self.total + self.prediction

    @property
    def _outside(self) -> int:
        return self.embedding + self.position + self.final_norm + self.head


def decoder_parameters(spec: DecoderSpec) -> Parameters:
    """Count the parameters of *spec*.

    >>> tiny = DecoderSpec(layers=4, hidden=256, heads=8, vocab=512, ffn_hidden=1024,
    ...                    kv_heads=8, head_dim=32, max_positions=256)
    >>> found = decoder_parameters(tiny)
    >>> found.total == 4 * (12 * 256**2 + 13 * 256) + (512 + 256) * 256 + 512
    True
    """
    table = spec.vocab * spec.hidden
    return Parameters(
        embedding=table + _norm(spec) * spec.arrangement.embedding_norm,
        position=spec.max_positions * spec.hidden if spec.position == "learned" else 0,
        layers=_layers(spec),
        final_norm=_norm(spec),
        head=0 if spec.tied_embeddings else table,
        prediction=_prediction(spec),
    )


def _layers(spec: DecoderSpec) -> tuple[tuple[LayerParameters, int], ...]:
    kinds = Counter((spec.mixer(one), spec.mlp(one)) for one in range(spec.layers))
    dense_first = sorted(kinds.items(), key=lambda item: item[0][1] == EXPERTS)
    return tuple((_layer(spec, *kind), count) for kind, count in dense_first)


def _layer(spec: DecoderSpec, mixer: str, mlp: str) -> LayerParameters:
    held = active = _mlp(spec, spec.ffn_hidden) if mlp == DENSE else 0
    if mlp == EXPERTS and spec.moe is not None:
        held, active = _experts(spec, spec.moe)
    norms = bool(mixer) + bool(mlp)
    if spec.parallel_block:
        norms = 1 + spec.arrangement.mlp_norm
    elif spec.arrangement.norms == "both":
        norms *= 2
    return LayerParameters(
        attention=_mixer(spec, mixer) if mixer else 0,
        mlp=held,
        norms=norms * _norm(spec),
        active_mlp=active,
    )


def _experts(spec: DecoderSpec, moe: MoeSpec) -> tuple[int, int]:
    """Those of all experts, and of what one token meets of them."""
    always = (spec.hidden + moe.router_bias) * moe.experts
    always += moe.shared_experts * _mlp(spec, moe.shared_ffn_hidden)
    always += spec.hidden if moe.shared_gate else 0
    always += 2 * spec.hidden * moe.latent
    outer = moe.latent or spec.hidden
    one = _mlp(spec, moe.expert_ffn_hidden, outer)
    return always + moe.experts * one, always + moe.experts_per_token * one


def _mixer(spec: DecoderSpec, mixer: str) -> int:
    """Of what mixes tokens, without the norm before it."""
    if mixer == RECURRENT and spec.recurrence is not None:
        return _recurrence(spec, spec.recurrence)
    if spec.mla is not None:
        return _latent_attention(spec, spec.mla)
    query = spec.heads * spec.head_dim
    key_value = 2 * spec.kv_heads * spec.head_dim
    count = spec.hidden * (2 * query + key_value)
    count += spec.hidden * query if spec.attention_gate else 0
    count += query + key_value if spec.attention_bias else 0
    count += spec.hidden if spec.output_bias else 0
    count += spec.heads if spec.attention_sinks else 0
    if spec.arrangement.wide_qk_norm:
        return count + query + key_value // 2
    return count + (2 * spec.head_dim if spec.qk_norm else 0)


def _recurrence(spec: DecoderSpec, mixer: RecurrenceSpec) -> int:
    """Its products, convolution, decays and norm, as the operators of `recurrence`
    have them; no biases of the first and last product."""
    sizes = recurrence_extents(mixer)
    value = sizes[VALUE]
    count = spec.hidden * (sum(sizes[one] for one in COLUMNS[mixer.kind]) + value)
    mixed = sum(sizes[one] for one in MIXED[mixer.kind])
    if mixer.conv_width:
        count += (mixer.conv_width + mixer.conv_bias) * mixed
    if mixer.kind == "mamba-1":
        steps = mixer.dt_rank + 2 * mixer.state
        count += value * (steps + mixer.dt_rank + 1)  # down, and up with its bias
        count += steps if mixer.dt_norms else 0
        return count + value * (mixer.state + 1)  # decays, and what passes by
    norm = mixer.head_dim if mixer.kind == "gated-delta" else value
    return count + OF_HEADS[mixer.kind] * mixer.heads + norm


def _latent_attention(spec: DecoderSpec, mla: MlaSpec) -> int:
    """DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C; no biases."""
    query = spec.heads * (mla.nope_head_dim + mla.rope_head_dim)
    value = spec.heads * mla.value_head_dim
    count = spec.hidden * (mla.kv_rank + mla.rope_head_dim) + mla.kv_rank  # its norm
    count += mla.kv_rank * (spec.heads * mla.nope_head_dim + value)
    if mla.query_rank is None:
        count += spec.hidden * query
    else:
        count += mla.query_rank * (spec.hidden + query + 1)
    return count + value * spec.hidden


def _mlp(spec: DecoderSpec, width: int, outer: int = 0) -> int:
    up, hidden = 2 if spec.gated_mlp else 1, outer or spec.hidden
    bias = up * width + hidden if spec.mlp_bias else 0
    return (up + 1) * hidden * width + bias


def _norm(spec: DecoderSpec) -> int:
    return spec.hidden * (2 if spec.norm == "layernorm" and spec.norm_bias else 1)


def _prediction(spec: DecoderSpec) -> int:
    """DeepSeek-V3 (arXiv 2412.19437), section 2.2: two norms, a projection of both
    halves, one more layer and a norm each; embedding and head are the model's."""
    layer = _layer(spec, *spec.predicting)
    each = 3 * _norm(spec) + 2 * spec.hidden**2 + layer.total
    return spec.multi_token_heads * each
