"""A chain of units is held against its module's own forward before it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costmodel.layout.strategy import spell_out
from profiles.errors import Unsupported
from runtime.api.dry_run import Drawn, DryRun
from tests.runtime.ranks import on_ranks
from tests.support.small_layouts import FP32
from tests.support.training_cases import job

WIDTH = 8
Joined = Callable[["Chain", Tensor], Tensor]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.3)

    def forward(self, stream: Tensor) -> Tensor:
        made: Tensor = stream + self.drop(F.gelu(self.norm(self.up(stream))))
        return made


class Chain(nn.Module):
    """Six layers, joined by its forward as a test says."""

    def __init__(self, joined: Joined) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(Layer() for _ in range(6))
        self.joined = joined

    def forward(self, stream: Tensor) -> Tensor:
        return self.joined(self, stream)


def plain(chain: Chain, stream: Tensor) -> Tensor:
    for layer in chain.layers:
        stream = layer(stream)
    return stream


def skipping(chain: Chain, stream: Tensor) -> Tensor:
    made: list[Tensor] = []
    for number, layer in enumerate(chain.layers):
        if number == 4:
            stream = stream + made[1]
        stream = layer(stream)
        made.append(stream)
    return stream


def twice(chain: Chain, stream: Tensor) -> Tensor:
    return plain(chain, chain.layers[0](stream))


def scaled(chain: Chain, stream: Tensor) -> Tensor:
    return plain(chain, stream) * 1.01


def inputs() -> Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(2))


def test_a_chain_is_what_its_module_computes_and_nothing_is_changed() -> None:
    module: Any = Chain(plain)
    module.layers[0].up.weight.data.mul_(0)
    before = {name: one.clone() for name, one in module.state_dict().items()}
    numbers = torch.get_rng_state()
    made = DryRun(module, list(module.layers)).shapes(inputs())
    assert made == [(6, WIDTH)] * 6
    assert torch.equal(torch.get_rng_state(), numbers)
    for name, one in module.state_dict().items():
        assert torch.equal(one, before[name]), name


@pytest.mark.parametrize(
    ("joined", "reason"),
    [
        (skipping, r"unit 4 \(Layer\) another tensor"),
        (twice, r"calls unit 0 \(Layer\) 2 times"),
        (scaled, "something follows the last unit"),
    ],
)
def test_what_is_no_chain_is_refused(joined: Joined, reason: str) -> None:
    module = Chain(joined)
    with pytest.raises(Unsupported, match=reason):
        DryRun(module, list(module.layers)).shapes(inputs())


def test_a_skip_that_is_nothing_at_first_is_seen() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Layer(), Layer()
            self.gate = nn.Parameter(torch.zeros(()))
            self.two.register_parameter("gate", self.gate)

        def forward(self, stream: Tensor) -> Tensor:
            made: Tensor = self.two(self.one(stream)) + self.gate * stream
            return made

    module = Gated()
    with pytest.raises(Unsupported, match="something follows the last unit"):
        DryRun(module, [module.one, module.two]).shapes(inputs())


def test_what_one_unit_leaves_for_another_is_not_there() -> None:
    """On another rank it would not be, either."""

    class Shared(nn.Module):
        def __init__(self, store: dict[str, Tensor], key: str) -> None:
            super().__init__()
            self.store, self.key = store, key
            self.up = nn.Linear(WIDTH, WIDTH)

        def forward(self, stream: Tensor) -> Tensor:
            made: Tensor = self.up(stream)
            if self.key == "take":
                return made + self.store["kept"]
            self.store["kept"] = made
            return made

    store: dict[str, Tensor] = {}
    units = [Shared(store, "keep"), nn.Linear(WIDTH, WIDTH), Shared(store, "take")]
    with pytest.raises(Unsupported, match=r"unit 2 \(Shared\) cannot be run by itself"):
        DryRun(nn.Sequential(*units), units).shapes(inputs())


def test_drawn_parameters_hold_nothing_and_are_always_the_same() -> None:
    drawn = Drawn(torch.zeros(3, 4), 7)
    with pytest.raises(RuntimeError, match="data pointer"):
        drawn.untyped_storage().data_ptr()
    assert torch.equal(drawn + 0, drawn.values())
    assert not torch.equal(drawn.values(), Drawn(torch.zeros(3, 4), 8).values())
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, stream: Tensor) -> Tensor:
            made: Tensor = self.attention(stream, stream, stream)[0]
            return made

    unit = Attends()
    assert DryRun(nn.Sequential(unit), [unit]).shapes(torch.ones(2, 3, WIDTH))


def refused(rank: int) -> list[str]:
    from runtime.api.entry import parallelize

    asked = spell_out(replace(FP32, pp=2, micro_batch=2), job("gpt").graph, 4)
    module = Chain(skipping)
    model: Any = parallelize(module, asked, units=module.layers, loss=F.mse_loss)
    with pytest.raises(Unsupported) as raised:
        model.step(inputs()[:4], inputs()[:4])
    return [str(raised.value)]


def test_a_skip_over_stages_is_refused_on_every_rank_before_it_trains() -> None:
    for (said,) in on_ranks(2, refused):
        assert "do not compute what Chain.forward does" in said
