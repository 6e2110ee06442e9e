"""A mixture of experts as the operators that the cost model names, one after another.

The same modules as `ExpertMlp.forward` calls. What is routed and sent is not made
again: scores once chosen, and rows once they have come, are kept, moved or packed.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from profiles.measure.routing import weighed
from runtime.kept import Kept, Pass
from runtime.modules.experts import ExpertMlp, Experts
from runtime.modules.mlp import Mlp
from runtime.tensor_parallel import SplitMlp


def mixture(mlp: ExpertMlp, normed: Kept, taken: Pass) -> Kept:
    """*mlp* of the normalised stream, every operator told to *taken*."""
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
    experts = _Told(mlp.experts, taken)
    made = mlp.exchange(sent.rows, sent.counts, experts)
    back = made.index_select(0, sent.places)
    taken.enter("combine_rows", back)
    mixed = weighed(back, sent.weights).view(normed.values[0].shape)
    whole = mixed if beside is None else mixed + beside
    return taken.enter("combine_out", whole)


def _shared(mlp: ExpertMlp, stream: Kept, taken: Pass) -> Tensor:
    shared = mlp.shared
    assert isinstance(shared, Mlp | SplitMlp), "shared experts are one MLP"
    up = taken.do("shared_up_out", shared.inner, stream)
    active = taken.do("shared_activation_out", shared.activation, up)
    (made,) = taken.do("shared_down_out", shared.down, active).values
    return mlp.gated(made, stream.values[0])


class _Told:
    """Experts whose operators are told to *taken*."""

    def __init__(self, experts: Experts, taken: Pass) -> None:
        self.held = experts.held
        self._experts, self._taken = experts, taken

    def __call__(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        made: Tensor = self._experts(rows, counts, self._in_turn)
        return made

    def _in_turn(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        experts, taken = self._experts, self._taken
        given = taken.enter("dispatch_out", rows)
        up = taken.do("mlp_up_out", lambda came: experts.inner(came, counts), given)
        active = taken.do("activation_out", experts.between, up)
        (made,) = taken.do("mlp_down_out", experts.outer, active).values
        return made
