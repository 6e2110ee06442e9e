"""Modules as people have them, over data-parallel ranks: some of it is never used, some
is frozen, some is called by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from profiles.errors import Contradiction, Unsupported
from runtime.api.entry import require_layers, require_trained
from tests.runtime.ranks import on_ranks
from tests.support.small_layouts import FP32, FSDP
from tests.support.training_cases import job

WIDTH, STEPS = 8, 3
CASES = {
    "ddp": replace(FP32, dp=2, zero=0),
    "fsdp": FSDP,
    "zero1": replace(FSDP, zero=1),
}


class Partly(nn.Module):
    """Four layers that are used, one that is not, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.unused, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, stream: Tensor) -> Tensor:
        return self.head(self.body(stream))  # type: ignore[no-any-return]

    def body(self, stream: Tensor) -> Tensor:
        for layer in self.layers:
            stream = torch.tanh(layer(stream))
        return stream


def batch(step: int) -> Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))


def layout(choice: Uniform) -> Layout:
    return spell_out(choice, job("gpt").graph, 8)


def steps(model: Any, rank: int | None) -> list[Tensor]:
    update = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for step in range(STEPS):
        rows = batch(step)
        update.zero_grad()
        model(rows if rank is None else rows.chunk(2)[rank]).square().mean().backward()
        update.step()
    return [one.detach() for one in model.parameters()]


def trained(rank: int) -> dict[str, Any]:
    from torch.distributed.tensor import DTensor

    from runtime.api.entry import parallelize

    found: dict[str, Any] = {}
    for name, choice in CASES.items():
        made = steps(parallelize(Partly(), layout(choice)), rank)
        found[name] = [
            one.full_tensor() if isinstance(one, DTensor) else one for one in made
        ]
        again = replace(choice, recompute="full")
        steps(parallelize(Partly(), layout(again)), rank)
        model: Any = parallelize(Partly(), layout(choice))
        with pytest.raises(Unsupported) as raised:
            model.head(model.body(batch(0)))
        found[f"{name} alone"] = str(raised.value)
        if name == "ddp":
            with torch.no_grad():
                found["looked at"] = model.body(batch(0))
    return found


def test_unused_parameters_train_and_parts_are_not_called_alone() -> None:
    module = Partly()
    looked_at = module.body(batch(0)).detach()
    wanted = steps(module, None)
    for seen in on_ranks(2, trained):
        for name in CASES:
            for one, other in zip(seen[name], wanted, strict=True):
                torch.testing.assert_close(one, other)
            assert "called outside Partly.forward" in seen[f"{name} alone"]
            assert seen[f"{name} alone"].startswith("layers.0 (")
        torch.testing.assert_close(seen["looked at"], looked_at)


def test_what_is_not_the_layouts_module_is_refused() -> None:
    asked, module = layout(FP32), Partly()
    require_layers(module, list(module.layers), asked)
    require_layers(module, [], asked)
    with pytest.raises(Contradiction, match="is of 4 layers and Partly has 8 units"):
        require_layers(module, [module.head] * 8, asked)
    with pytest.raises(Contradiction, match="is of 4 layers and Partly has 3 units"):
        require_layers(module, list(module.layers)[:3], asked)
    require_trained(module, asked)
    module.unused.to(torch.bfloat16)
    with pytest.raises(Contradiction, match=r"unused.weight is bfloat16.*module.float"):
        require_trained(module, asked)
    module.unused.requires_grad_(requires_grad=False)
    require_trained(module, asked)
    with pytest.raises(Contradiction, match="bfloat16"):
        require_trained(module, layout(FSDP))
    module.requires_grad_(requires_grad=False)
    with pytest.raises(Contradiction, match="no parameter of Partly is trained"):
        require_trained(module, asked)


def averaged(rank: int) -> dict[str, Any]:
    """Gradients of a stage of which each rank's batch uses something else."""
    from torch.distributed.device_mesh import init_device_mesh

    from runtime.api.pipelined import Replicated

    part = nn.ParameterDict({name: torch.zeros(2) for name in ("both", "one", "none")})
    part["still"] = nn.Parameter(torch.zeros(2), requires_grad=False)
    alike = Replicated(part, init_device_mesh("cpu", (2,)))
    alike.begin()
    made = (part["both"] * (rank + 1)).sum()
    if rank == 1:
        made = made + (part["one"] * 4).sum()
    made.backward()
    alike.finish()
    grads = {name: one.grad for name, one in part.items()}
    return {name: None if one is None else one.tolist() for name, one in grads.items()}


def test_what_one_rank_used_has_a_gradient_on_all() -> None:
    wanted = {"both": [1.5, 1.5], "one": [2.0, 2.0], "none": None, "still": None}
    assert on_ranks(2, averaged) == [wanted, wanted]
