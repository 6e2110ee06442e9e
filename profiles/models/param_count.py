"""Exact parameter counts of decoders and of BERT's family, part by part.

For a GPT they add up to L·(12h² + 13h) + (V + s)·h + 2h: Narayanan et al. (SC'21),
section 5.1, with the final norm that its formula leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import Unsupported
from profiles.models.spec import BertSpec, DecoderSpec, MlaSpec, ModelSpec, MoeSpec


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

    @property
    def total(self) -> int:
        """Parameters of the model, as model cards count them."""
        return self._outside + sum(layer.total * n for layer, n in self.layers)

    @property
    def active(self) -> int:
        """Parameters that one token meets: all but the experts not chosen."""
        return self._outside + sum(layer.active * n for layer, n in self.layers)

    @property
    def trained(self) -> int:
        return self.total + self.prediction

    @property
    def _outside(self) -> int:
        return self.embedding + self.position + self.final_norm + self.head


def parameters(spec: ModelSpec) -> Parameters:
    """Count the parameters of *spec*.

    >>> tiny = DecoderSpec(layers=4, hidden=256, heads=8, vocab=512, ffn_hidden=1024,
    ...                    kv_heads=8, head_dim=32, max_positions=256)
    >>> parameters(tiny).total == 4 * (12 * 256**2 + 13 * 256) + (512 + 256) * 256 + 512
    True

    Raises Unsupported for other families than decoders and BERT's.
    """
    if isinstance(spec, BertSpec):
        return _bert(spec)
    if not isinstance(spec, DecoderSpec):
        raise Unsupported(
            f"parameters of family {spec.family!r} are not counted yet; "
            "those of decoders and of BERT are"
        )
    table = spec.vocab * spec.hidden
    return Parameters(
        embedding=table,
        position=spec.max_positions * spec.hidden if spec.position == "learned" else 0,
        layers=_layers(spec),
        final_norm=_norm(spec),
        head=0 if spec.tied_embeddings else table,
        prediction=_prediction(spec),
    )


def _bert(spec: BertSpec) -> Parameters:
    """Tables of words, positions and two segments, their norm, and a pooler (Devlin et
    al., NAACL 2019). ALBERT's tables are narrow and projected, and layers that share
    weights count once (Lan et al., ICLR 2020, sections 3.1 and 3.2)."""
    hidden, width = spec.hidden, spec.embedding_rank or spec.hidden
    projection = 0 if spec.embedding_rank is None else (width + 1) * hidden
    mlp = 2 * hidden * spec.ffn_hidden + spec.ffn_hidden + hidden
    layer = LayerParameters(
        attention=4 * (hidden + 1) * hidden, mlp=mlp, norms=4 * hidden, active_mlp=mlp
    )
    return Parameters(
        embedding=(spec.vocab + 2 + 2) * width + projection,
        position=spec.max_positions * width,
        layers=((layer, spec.layers // spec.shared_layers),),
        final_norm=0,
        head=(hidden + 1) * hidden,
    )


def _layers(spec: DecoderSpec) -> tuple[tuple[LayerParameters, int], ...]:
    dense, moe = _layer(spec, None), spec.moe
    if moe is None:
        return ((dense, spec.layers),)
    experts = sum(moe.holds(layer) for layer in range(spec.layers))
    kinds = ((dense, spec.layers - experts), (_layer(spec, moe), experts))
    return tuple((layer, count) for layer, count in kinds if count)


def _layer(spec: DecoderSpec, moe: MoeSpec | None) -> LayerParameters:
    mlp, active = _mlp(spec, spec.ffn_hidden), _mlp(spec, spec.ffn_hidden)
    if moe is not None:
        always = (spec.hidden + moe.router_bias) * moe.experts
        always += moe.shared_experts * _mlp(spec, moe.shared_ffn_hidden)
        always += spec.hidden if moe.shared_gate else 0
        one = _mlp(spec, moe.expert_ffn_hidden)
        mlp = always + moe.experts * one
        active = always + moe.experts_per_token * one
    return LayerParameters(
        attention=_attention(spec),
        mlp=mlp,
        norms=(1 if spec.parallel_block else 2) * _norm(spec),
        active_mlp=active,
    )


def _attention(spec: DecoderSpec) -> int:
    if spec.mla is not None:
        return _latent_attention(spec, spec.mla)
    query = spec.heads * spec.head_dim
    key_value = 2 * spec.kv_heads * spec.head_dim
    count = spec.hidden * (2 * query + key_value)
    count += query + key_value if spec.attention_bias else 0
    count += spec.hidden if spec.output_bias else 0
    count += spec.heads if spec.attention_sinks else 0
    return count + (2 * spec.head_dim if spec.qk_norm else 0)


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


def _mlp(spec: DecoderSpec, width: int) -> int:
    up = 2 if spec.gated_mlp else 1
    bias = up * width + spec.hidden if spec.mlp_bias else 0
    return (up + 1) * spec.hidden * width + bias


def _norm(spec: DecoderSpec) -> int:
    return spec.hidden * (2 if spec.norm == "layernorm" and spec.norm_bias else 1)


def _prediction(spec: DecoderSpec) -> int:
    """DeepSeek-V3 (arXiv 2412.19437), section 2.2: two norms, a projection of both
    halves, one more layer and a norm each; embedding and head are the model's."""
    each = 3 * _norm(spec) + 2 * spec.hidden**2 + _layer(spec, spec.moe).total
    return spec.multi_token_heads * each
