"""A layer, or its mixture of experts, as the operators that the cost model names.

The same modules as `Layer.forward` and `ExpertMlp.forward` call, one after another,
with the names that `profiles.models.decoder` gives to what they make. Routing and
dispatch are not recomputed: scores and received rows are kept, offloaded or compressed.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from costmodel.layout import CORE, Action
from profiles.measure.timing import weighed
from runtime.models import Counts, ExpertMlp, Experts, Layer, Mlp, autocast
from runtime.parallel import SplitMlp
from runtime.remat.saved_tensors import Pass, Saved


def mixture(mlp: ExpertMlp, normed: Saved, taken: Pass) -> Saved:
    """*mlp* of the normalised stream, every operator recorded by *taken*."""
    scores = taken.do("router_out", mlp.router.scores, normed)
    routed = mlp.router.choose(scores.values[0])
    taken.enter("top_k_out", routed.probabilities)
    balanced = taken.do(
        "balanced",
        lambda stream: mlp.balance(stream, routed.chosen, routed.probabilities),
        normed,
        part_of=normed,
    )
    beside = None if mlp.shared is None else _shared(mlp, balanced, taken)
    sent = mlp.sent(balanced.values[0], routed)
    experts = _RecordedExperts(mlp.experts, taken)
    made = mlp.exchange(sent.rows, sent.counts, experts)
    back = sent.by_token(made)
    taken.enter("combine_rows", back)
    mixed = weighed(back, sent.weights).view(normed.values[0].shape)
    whole = mixed if beside is None else mixed + beside
    return taken.enter("combine_out", whole)


def _shared(mlp: ExpertMlp, stream: Saved, taken: Pass) -> Tensor:
    shared = mlp.shared
    assert isinstance(shared, Mlp | SplitMlp), "shared experts are one MLP"
    up = taken.do("shared_up_out", shared.inner, stream)
    active = taken.do("shared_activation_out", shared.activation, up)
    (made,) = taken.do("shared_down_out", shared.down, active).values
    return mlp.gated(made, stream.values[0])


class _RecordedExperts:
    """Experts whose operators are recorded by *taken*."""

    def __init__(self, experts: Experts, taken: Pass) -> None:
        self.held = experts.held
        self._experts, self._taken = experts, taken

    def __call__(self, rows: Tensor, counts: Counts) -> Tensor:
        made: Tensor = self._experts(rows, counts, self._in_turn)
        return made

    def _in_turn(self, rows: Tensor, counts: Counts) -> Tensor:
        experts, taken = self._experts, self._taken
        given = taken.enter("dispatch_out", rows)
        up = taken.do("mlp_up_out", lambda came: experts.inner(came, counts), given)
        active = taken.do("activation_out", experts.activation, up)
        down = taken.do("mlp_down_out", lambda one: experts.down(one, counts), active)
        (made,) = down.values
        return made


ENTRY = "layer_in"
FEW_BITS = 4


def run(layer: Layer, stream: Tensor, taken: Pass) -> Tensor:
    """*layer* of *stream*, every operator recorded by *taken*."""
    entry = taken.enter(ENTRY, stream)
    projected = _attention(layer, entry, taken)
    middle = _residual(layer, "attention_residual_out", entry, projected, taken)
    normed = taken.do("mlp_norm_out", _cast(layer.mlp_norm), middle)
    if isinstance(layer.mlp, ExpertMlp):
        down = mixture(layer.mlp, normed, taken)
    else:
        down = _mlp(layer.mlp, normed, taken)
    (made,) = _residual(layer, "mlp_residual_out", middle, down, taken).values
    return made


def _mlp(mlp: nn.Module, normed: Saved, taken: Pass) -> Saved:
    assert isinstance(mlp, Mlp | SplitMlp), "a layer has an MLP or experts"
    up = taken.do("mlp_up_out", mlp.inner, normed)
    active = taken.do("activation_out", mlp.activation, up)
    return taken.do("mlp_down_out", mlp.down, active)


def _attention(layer: Layer, entry: Saved, taken: Pass) -> Saved:
    attention = layer.attention
    normed = taken.do("input_norm_out", _cast(layer.input_norm), entry)
    packed = taken.do("qkv_out", attention.qkv, normed)
    views = attention.query_norm is None and not attention.rotary
    heads = taken.do(
        "heads" if views else _name_of_heads(layer),
        attention.heads,
        packed,
        part_of=packed if views else None,
    )
    mixed = _core(layer, heads, taken)
    return taken.do(
        "projection_out",
        lambda mixed: attention.projection(mixed.transpose(1, 2).flatten(2)),
        mixed,
    )


def _name_of_heads(layer: Layer) -> str:
    if layer.attention.rotary:
        return "rotary_out"
    return "qk_norm_out" if layer.attention.query_norm is not None else "qkv_out"


def _core(layer: Layer, heads: Saved, taken: Pass) -> Saved:
    """Attention itself. What it saves inside is recomputed by itself, unless its output
    is recomputed too, in one go."""
    core, name = layer.attention.core, "attention_out"
    draws = layer.attention.numerics.attention_dropout > 0
    again = _recomputes(taken, CORE) and not _recomputes(taken, name)
    if not again and not _blurs(taken, _name_of_heads(layer)):
        return taken.do(name, core, heads, draws=draws)
    given = taken.source(heads)
    return taken.do(
        name,
        lambda *_: checkpoint(
            lambda: core(*given()), use_reentrant=False, preserve_rng_state=draws
        ),
        heads,
        draws=draws,
    )


def _recomputes(taken: Pass, name: str) -> bool:
    found = taken.treatment(name)
    return found is not None and found.action is Action.RECOMPUTE


def _blurs(taken: Pass, name: str) -> bool:
    """Whether queries and keys come back so changed that the sums of the softmax, which
    were of the true ones, would not fit them: its backward has exp(q·k − log-sum)."""
    found = taken.treatment(name)
    return found is not None and found.bits is not None and found.bits <= FEW_BITS


def _residual(
    layer: Layer, name: str, skip: Saved, branch: Saved, taken: Pass
) -> Saved:
    return taken.do(
        name,
        lambda skip, branch: skip + layer.dropout(branch),
        skip,
        branch,
        draws=layer.dropout.share > 0,
    )


def _cast(norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A norm whose output is as the products after it take it.

    Autocast would cast it once for each of them, to copies that have no name.
    """

    def made(stream: Tensor) -> Tensor:
        (cast,) = autocast(norm(stream))
        return cast  # type: ignore[no-any-return]

    return made
