"""`runtime.remat.dynamic`: the same numbers, to the bit, within a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.layout_files import write_layout
from profiles.errors import Contradiction, Unsupported
from runtime.launch import run
from runtime.remat.dynamic import Rematerializer
from runtime.trace.peak_memory import watched
from tests.runtime.ranks import on_ranks
from tests.runtime.remat.test_compressed_module import MADE, gradients
from tests.runtime.remat.test_saved_tensors import GPT, LLAMA, stage
from tests.runtime.run_options import run_options
from tests.support.training import trainer_of
from tests.support.training_cases import BATCH, job


def within(
    module: nn.Module, given: Tensor, budget: float
) -> tuple[Tensor, Rematerializer]:
    keeper = Rematerializer(budget)
    module.zero_grad()
    with keeper.recording():
        loss = module(given).square().mean()
    loss.backward()
    grads = [one.grad.flatten() for one in module.parameters()]  # type: ignore[union-attr]
    return torch.cat(grads), keeper


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_gradients_are_the_same_to_the_bit(name: str, share: float) -> None:
    torch.manual_seed(0)
    kind, shape = MADE[name]
    module, given = kind(F.gelu), torch.randn(shape)
    exact = gradients(module, given)
    _, free = within(module, given, float("inf"))
    assert free.evicted == free.remade == 0
    found, keeper = within(module, given, share * free.most_bytes)
    assert torch.equal(found, exact)
    assert keeper.most_bytes <= max(share * free.most_bytes, keeper.largest_bytes)
    assert (keeper.evicted > 0) == (share < 1)
    assert keeper.kept_bytes == 0  # all is let go


@pytest.mark.parametrize("spec", [GPT, LLAMA], ids=["dropout", "llama"])
def test_layers_of_the_catalogue_with_dropout(spec: object) -> None:
    """Masks are drawn once, and kept."""
    module = stage(spec)  # type: ignore[arg-type]
    given = torch.randn(2, 16, 32)
    results = []
    for budget in (float("inf"), 40_000.0):
        torch.manual_seed(1)
        results.append(within(module, given, budget))
    (exact, free), (found, keeper) = results
    assert torch.equal(exact, found)
    assert keeper.evicted
    assert keeper.most_bytes < 0.7 * free.most_bytes


def test_several_passes_share_the_budget() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8))
    )
    batches = [torch.randn(32, 64) for _ in range(3)]
    exact = sum(gradients(module, one) for one in batches)
    keeper = Rematerializer(60_000)
    module.zero_grad()
    losses = []
    for one in batches:
        with keeper.recording():
            losses.append(module(one).square().mean())
    for loss in losses:
        loss.backward()
    found = torch.cat([one.grad.flatten() for one in module.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(found, exact)
    assert keeper.most_bytes <= 60_000
    assert keeper.kept_bytes == 0


def test_a_tensor_that_is_changed_after_it_was_read_is_refused() -> None:
    class Changing(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            made = given * 2
            read = made.sin()
            made.add_(1)
            return read * made

    keeper, given = Rematerializer(1), torch.randn(8, requires_grad=True)
    with pytest.raises(Unsupported, match="changes a tensor"), keeper.recording():
        Changing()(given)


def trained(rank: int) -> dict[str, Any]:
    found = {}
    for budget in (None, 200_000.0):
        choice = Uniform(dp=2, zero=0, precision="amp-bf16", micro_batch=1)
        trainer = trainer_of(
            spell_out(choice, job("gpt").graph, BATCH), budget_bytes=budget
        )
        with watched(torch.device("cpu")) as peak:
            losses = [trainer.step(number).loss for number in range(2)]
        found[str(budget)] = {"losses": losses, "peak": peak.allocated}
        if budget is not None:
            keeper = trainer.rematerializer
            assert keeper is not None
            found["kept"] = {"most": keeper.most_bytes, "evicted": keeper.evicted}
    return found


def test_ranks_train_within_a_budget() -> None:
    """The same losses, under a smaller measured peak; under autocast too."""
    for found in on_ranks(2, trained):
        plain, within_budget = found["None"], found["200000.0"]
        assert within_budget["losses"] == plain["losses"]
        assert found["kept"]["evicted"]
        assert found["kept"]["most"] <= 200_000
        assert within_budget["peak"] < plain["peak"]


@pytest.mark.parametrize(
    ("options", "choice", "reason"),
    [
        ({"recompute": "dtr"}, {}, "go together"),
        ({"recompute": "dtr", "memory_budget": 9.0}, {"zero": 1}, "decides alone"),
        ({"recompute": "dtr", "memory_budget": 9.0, "compiled": True}, {}, "single"),
        ({"compress_gradients": "bf16"}, {"zero": 1}, "plan with --zero 0"),
        ({"compress_activations": "auto"}, {}, "make it with"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_runs(
    options: dict[str, Any], choice: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    asked = job("gpt")
    whole = Uniform(
        **{"dp": 2, "zero": 0, "zero_group": 1, "precision": "fp32", **choice}
    )
    whole = replace(whole, zero_group=2 if whole.zero else 1)
    file = tmp_path / "layout.json"
    write_layout(file, asked, "local", spell_out(whole, asked.graph, BATCH))
    with pytest.raises(Contradiction, match=reason):
        run.prepare(replace(run_options(file), **options))
