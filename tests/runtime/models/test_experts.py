"""Experts in one process: the mixture against its formula, and what balances it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from profiles.errors import Unsupported
from profiles.models.catalog import model
from profiles.models.spec import DecoderSpec, MoeSpec
from runtime.models.decoder import Layer, initialise, require_trainable
from runtime.models.mlp import Mlp
from runtime.models.moe import Balance, ExpertMlp, Stack
from runtime.optim.optimizer import Optimizer, Settings
from tests.support.fact_settings import SPEC

ALPHA = SPEC.numerics.balance

MOE = MoeSpec(
    experts=4,
    experts_per_token=2,
    expert_ffn_hidden=24,
    shared_experts=2,
    shared_ffn_hidden=8,
    router_bias=True,
)
GATED = replace(SPEC, gated_mlp=True, activation="silu", mlp_bias=False, moe=MOE)
BIASED = replace(SPEC, moe=replace(MOE, shared_experts=0, shared_ffn_hidden=0))


def dropping(spec: DecoderSpec, factor: float) -> DecoderSpec:
    assert spec.moe is not None
    return replace(spec, moe=replace(spec.moe, capacity_factor=factor))


def mixture(spec: DecoderSpec) -> ExpertMlp:
    assert spec.moe is not None
    with torch.device("meta"):
        made = ExpertMlp(spec, spec.moe)
    initialise(made, prefix="", layers=1, seed=5, device=torch.device("cpu"))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(10).add_(torch.linspace(-0.1, 0.1, parameter.shape[-1]))
    return made


def reachable(scores: Tensor, mlp: ExpertMlp) -> Tensor:
    """Which experts lie in a group that a token may choose, token by token."""
    allowed, size = mlp.router.allowed, mlp.balance.experts // mlp.router.groups
    if allowed is None:
        return torch.ones_like(scores)
    open_ = torch.zeros_like(scores)
    for place in torch.cartesian_prod(*map(torch.arange, scores.shape[:2])).tolist():
        groups = scores[tuple(place)].split(size)
        counted = -(-mlp.router.chosen // allowed)
        sums = [float(one.sort().values[-counted:].sum()) for one in groups]
        for group in sorted(range(len(sums)), key=sums.__getitem__)[-allowed:]:
            open_[(*place, slice(group * size, (group + 1) * size))] = 1.0
    return open_


def kept(weights: Tensor, most: int | None) -> Tensor:
    """Which of *weights* (batch, tokens, experts) are not dropped: of each sequence and
    expert the *most* largest, or all."""
    if most is None:
        return torch.ones_like(weights)
    taken = torch.zeros_like(weights)
    for sequence in range(weights.shape[0]):
        for expert in range(weights.shape[2]):
            column = weights[sequence, :, expert].tolist()
            best = sorted(range(len(column)), key=column.__getitem__)[-most:]
            taken[sequence, best, expert] = 1.0
    return taken


def by_formula(mlp: ExpertMlp, stream: Tensor) -> Tensor:
    """Every token through every expert, weighted; nothing sorted."""
    experts, linear = mlp.experts, mlp.router.linear
    scores = F.linear(stream, linear.weight, linear.bias).softmax(-1)
    largest, chosen = (scores * reachable(scores.detach(), mlp)).topk(
        mlp.router.chosen, -1
    )
    weights = torch.zeros_like(scores).scatter(-1, chosen, largest)
    weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * kept(weights.detach(), mlp.capacity_of(stream.shape[1]))
    total = torch.zeros_like(stream)
    for number in range(mlp.balance.experts):

        def product(rows: Tensor, stack: Stack, e: int = number) -> Tensor:
            bias = None if stack.bias is None else stack.bias[e]
            return F.linear(rows, stack.weight[e], bias)

        up = product(stream, experts.up)
        inner = (
            experts.activation(up)
            if experts.gate is None
            else experts.activation(product(stream, experts.gate), up)
        )
        total = total + weights[..., number, None] * product(inner, experts.down)
    return total if mlp.shared is None else total + mlp.shared(stream)


SPECS = {
    "gated-shared": GATED,
    "biased": BIASED,
    "dropping": dropping(GATED, 0.5),
    "dropping-biased": dropping(BIASED, 1.0),
    "in-groups": replace(
        GATED, moe=replace(MOE, experts=8, router_groups=4, groups_per_token=2)
    ),
    "in-one-group": replace(
        GATED, moe=replace(MOE, experts=6, router_groups=2, groups_per_token=1)
    ),
    "roomy": dropping(GATED, 9.0),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_mixture_is_its_formula_and_so_are_its_gradients(spec: DecoderSpec) -> None:
    torch.manual_seed(0)
    mlp, stream = mixture(spec), torch.randn(2, 6, spec.hidden, requires_grad=True)
    mlp.balance.scale = 0.0
    upward = torch.randn(2, 6, spec.hidden)
    leaves = [stream, *mlp.parameters()]
    found = torch.autograd.grad(mlp(stream), leaves, upward)
    wanted = torch.autograd.grad(by_formula(mlp, stream), leaves, upward)
    torch.testing.assert_close(mlp(stream), by_formula(mlp, stream))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_experts_of_a_fixed_capacity_take_as_much_of_each_sequence() -> None:
    """⌈0.5 · 2 · 6 / 4⌉ = 2 rows each, and what that drops changes what is made."""
    torch.manual_seed(0)
    stream = torch.randn(3, 6, GATED.hidden)
    mlp, whole = mixture(dropping(GATED, 0.5)), mixture(GATED)
    sent = mlp.sent(stream, mlp.router(stream))
    assert len(sent.rows) == 4 * 3 * 2
    assert sent.counts is None
    assert bool((sent.weights == 0).any())
    assert not torch.allclose(mlp(stream), whole(stream))
    torch.testing.assert_close(mlp(stream)[1:2], mlp(stream[1:2]))


def test_experts_that_nobody_chose_have_gradients_of_zero() -> None:
    mlp = mixture(GATED)
    with torch.no_grad():
        mlp.router.linear.bias.copy_(torch.tensor([9.0, 9.0, -9.0, -9.0]))
    mlp(torch.ones(1, 3, GATED.hidden)).sum().backward()
    gradient = mlp.experts.down.weight.grad
    assert gradient is not None
    assert bool(gradient[0].any())
    assert not bool(gradient[2:].any())


def routed(tokens: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    probabilities = torch.randn(2, tokens, 4).softmax(-1).requires_grad_()
    return probabilities.topk(2, -1)[1], probabilities


def test_an_even_router_has_the_least_loss() -> None:
    """f = 1 and P = 1/E: the loss is α."""
    even = torch.full((2, 8, 4), 0.25)
    chosen = torch.tensor([[0, 1], [2, 3]]).repeat(2, 4, 1)
    assert float(Balance(4, ALPHA).loss(chosen, even)) == pytest.approx(ALPHA)
    crowded = torch.zeros(2, 8, 4)
    crowded[..., :2] = 0.5
    all_to_two = torch.tensor([0, 1]).expand(2, 8, 2)
    assert float(Balance(4, ALPHA).loss(all_to_two, crowded)) == pytest.approx(
        2 * ALPHA
    )


def test_the_loss_joins_the_gradient_and_not_the_value() -> None:
    chosen, probabilities = routed()
    balance, stream = Balance(4, ALPHA), torch.ones(2, 8, 3, requires_grad=True)
    balance.scale = 0.5
    same = balance(stream, chosen, probabilities)
    assert torch.equal(same, stream)
    same.sum().backward()
    (wanted,) = torch.autograd.grad(balance.loss(chosen, probabilities), probabilities)
    torch.testing.assert_close(probabilities.grad, 0.5 * wanted)
    torch.testing.assert_close(stream.grad, torch.ones(2, 8, 3))


@pytest.mark.parametrize("averaged", [1, 2])
def test_ranks_that_share_a_sequence_have_its_loss_together(averaged: int) -> None:
    chosen, probabilities = routed()
    whole, losses, counts = Balance(4, ALPHA).loss(chosen, probabilities), [], []
    for part in (slice(0, 4), slice(4, 8)):
        here = torch.zeros(2, 4)
        ones = torch.ones(2, 8)
        counts.append(here.scatter_add_(1, chosen[:, part].flatten(1), ones))
    for part in (slice(0, 4), slice(4, 8)):
        share = Balance(4, ALPHA)
        share.parts, share.mean_over = 2, averaged
        share.sharing = lambda _: counts[0] + counts[1]
        losses.append(share.loss(chosen[:, part], probabilities[:, part]))
    torch.testing.assert_close((losses[0] + losses[1]) / averaged, whole)


def test_layers_have_experts_where_the_spec_says() -> None:
    spec = replace(GATED, moe=replace(MOE, first_layer=1, every=2))
    with torch.device("meta"):
        kinds = [type(Layer(spec, number).mlp) for number in range(4)]
    assert kinds == [Mlp, ExpertMlp, Mlp, ExpertMlp]


def test_biases_of_experts_do_not_decay() -> None:
    mlp = mixture(BIASED)
    leaves = Optimizer(mlp.named_parameters(), Settings()).leaves
    assert {leaf.name for leaf in leaves if not leaf.decays} == {
        "router.linear.bias",
        "experts.up.bias",
        "experts.down.bias",
    }


def test_gpt_oss_has_attention_sinks_that_are_not_trained() -> None:
    spec = model("gpt-oss-20b").spec
    assert isinstance(spec, DecoderSpec)
    with pytest.raises(Unsupported, match="attention sinks"):
        require_trainable(spec)
