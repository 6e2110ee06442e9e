"""`runtime.remat.compressed_module`: any module's saved tensors, in fewer bits.

As they are, without a word about what they are: convolutions, attention with a softmax
of its own, a graph network.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from costmodel.layout.retention import Action, Treatment
from runtime.remat.compressed_module import compress_module
from runtime.remat.quantized_activations import Quantizer
from runtime.trace.peak_memory import alive_bytes
from tests.support.rows import Obtained

DRAWS = 1000


class Convolutions(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.last, self.between = nn.Linear(8, 4), between

    def forward(self, image: Tensor) -> Tensor:
        made = self.two(F.avg_pool2d(self.between(self.one(image)), 2))
        return self.last(self.between(made).mean((2, 3)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(32), nn.Linear(32, 96)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.between = between

    def forward(self, stream: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(stream)).chunk(3, -1)
        scores = torch.softmax(query @ key.transpose(1, 2) / 32**0.5, -1)
        stream = stream + scores @ value
        return self.down(self.between(self.up(stream))) + stream  # type: ignore[no-any-return]


class Graph(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.between = nn.Linear(16, 32), nn.Linear(32, 8), between
        same = torch.Generator().manual_seed(0)
        self.edges = torch.randint(0, 64, (2, 256), generator=same)

    def forward(self, nodes: Tensor) -> Tensor:
        start, end = self.edges
        for layer in (self.one, self.two):
            sent = layer(nodes)[start]
            nodes = self.between(torch.zeros(64, sent.shape[1]).index_add(0, end, sent))
        return nodes


MADE = {
    "cnn": (Convolutions, (8, 3, 16, 16)),
    "transformer": (Attention, (4, 24, 32)),
    "gnn": (Graph, (64, 16)),
}


def gradients(module: nn.Module, given: Tensor) -> Tensor:
    module.zero_grad()
    module(given).square().mean().backward()
    return torch.cat([one.grad.flatten() for one in module.parameters()])  # type: ignore[union-attr]


def compressed(bits: int) -> Treatment:
    return Treatment(action=Action.COMPRESS, bits=bits)


@pytest.mark.row(
    "G5",
    "mean of 1,000 gradients in standard deviations, squared, on average",
    expected="1, each within 3",
    evidence="computed",
)
@pytest.mark.parametrize(
    ("name", "bits", "between"),
    [
        *((name, 8, F.gelu) for name in MADE),
        # Products alone are linear in what they save: any bits will do.
        *((name, 2, nn.Identity()) for name in ("cnn", "gnn")),
    ],
)
def test_gradients_are_right_on_average(
    name: str, bits: int, between: Callable[[Tensor], Tensor], obtained: Obtained
) -> None:
    """The mean of 1,000 draws within 3 standard deviations: of a hundred projections
    at random nearly all, of the gradient's length the square."""
    torch.manual_seed(0)
    kind, shape = MADE[name]
    module, given = kind(between), torch.randn(shape)
    exact = gradients(module, given)
    compress_module(module, compressed(bits), Quantizer())
    forward = module(given)
    compress_module(reference := kind(between), compressed(16), Quantizer())
    reference.load_state_dict(module.state_dict())
    torch.testing.assert_close(forward, reference(given))  # the forward is exact
    found = torch.stack([gradients(module, given) for _ in range(DRAWS)])
    assert not torch.equal(found[0], found[1])
    seen = (found - exact).double() @ torch.randn(len(exact), 100).double()
    deviations = seen.mean(0) / (seen.std(0) / DRAWS**0.5)
    obtained(f"{float(deviations.square().mean()):.2f}")
    assert (deviations.abs() <= 3).float().mean() >= 0.97
    assert deviations.square().mean() < 2  # 1 where it is right


@pytest.mark.parametrize("name", MADE)
def test_less_is_alive_between_forward_and_backward(name: str) -> None:
    """Two bits of 32, but for small tensors, indices and what is at work."""
    torch.manual_seed(0)
    kind, shape = MADE[name]
    given = torch.randn(shape if name == "gnn" else (8 * shape[0], *shape[1:]))
    held = {}
    for bits in (32, 2):
        module = kind(F.gelu)
        if bits < 32:
            compress_module(module, compressed(bits), Quantizer())
        before = alive_bytes()
        with saved_tensors_hooks(Tensor.detach, Tensor.detach):  # so that Python counts
            loss = module(given).square().sum()
        held[bits] = alive_bytes() - before
        loss.backward()
    assert held[2] < held[32] / 6
