"""What a trace says of a module is what running it for real shows."""

from __future__ import annotations

import pytest
import torch

from profiles import load_model
from profiles.models import Kind
from profiles.trace import trace
from tests.support.measured_module import (
    HUGGING_FACE,
    OWN,
    measured,
    needs_transformers,
)

OWN_MODULES = ("resnet", "wide_resnet", "unet", "dlrm", "lstm", "odd", "by_hand")
MODELS = ("gpt2", "llama", "bert", "t5", "vit")


@pytest.mark.parametrize("name", OWN_MODULES)
def test_flops_parameters_and_saved_bytes_are_those_of_a_run(name: str) -> None:
    _require_equal(f"{OWN}:{name}")


@needs_transformers
@pytest.mark.parametrize("name", MODELS)
def test_so_are_those_of_hugging_faces_models(name: str) -> None:
    _require_equal(f"{HUGGING_FACE}:{name}")


@needs_transformers
def test_experts_are_traced_as_all_tokens_through_as_many_as_are_chosen() -> None:
    reference = f"{HUGGING_FACE}:mixtral"
    found, run = trace(reference), measured(reference)
    assert found.parameter_count == run.parameters
    # PyTorch's counter does not know the kernel of the experts.
    layers, rows, hidden, inside = 4, 2 * 64 * 2, 128, 256
    experts = layers * 2 * rows * 3 * hidden * inside
    assert found.flops.of(2) == pytest.approx(run.flops + experts, rel=0.01)
    back = run.backward_flops + 2 * experts
    assert found.backward_flops.of(2) == pytest.approx(back, rel=0.01)
    assert found.saved_bytes.of(2) == pytest.approx(run.saved_bytes, rel=0.05)


@pytest.mark.parametrize("name", ["mixture", "frozen_experts"])
def test_the_backward_of_experts_is_counted(name: str) -> None:
    """Weights that are not trained have no gradient: half of it."""
    found, run = trace(f"{OWN}:{name}"), measured(f"{OWN}:{name}")
    assert found.flops.of(2) == pytest.approx(run.flops)
    assert found.backward_flops.of(2) == pytest.approx(run.backward_flops)
    graph = load_model(f"{OWN}:{name}").job().graph
    grouped = [
        one
        for block in graph.distinct()
        for one in block.operators
        if one.kind is Kind.GROUPED_MATMUL
    ]
    assert [one.frozen for one in grouped] == [name == "frozen_experts"] * 2


def _require_equal(reference: str) -> None:
    found, run = trace(reference), measured(reference)
    assert found.parameter_count == run.parameters
    assert found.flops.of(2) == pytest.approx(run.flops, rel=0.01)
    assert found.backward_flops.of(2) == pytest.approx(run.backward_flops, rel=0.01)
    assert found.saved_bytes.of(2) == pytest.approx(run.saved_bytes, rel=0.05)


def test_the_batch_is_free() -> None:
    found = trace(f"{OWN}:unet")
    assert found.flops.each > 0
    assert found.flops.once == 0
    assert found.saved_bytes.of(6) == pytest.approx(6 * found.saved_bytes.each)


def test_steps_say_which_module_they_are_of() -> None:
    found = trace(f"{OWN}:unet")
    by_name = {step.name: step for step in found.steps}
    assert by_name["conv3d"].module == "downs.0.conv1"
    assert by_name["conv3d"].kind == "Conv3d"
    assert by_name["conv3d"].parameters == (
        "downs.0.conv1.weight",
        "downs.0.conv1.bias",
    )


def test_a_tied_weight_is_one_parameter() -> None:
    found = trace(f"{OWN}:by_hand")
    (tied,) = (one for one in found.parameters if one.aliases)
    assert (tied.name, tied.aliases) == ("embed.weight", ("head.weight",))
    readers = [step.module for step in found.steps if tied.name in step.parameters]
    assert readers == ["embed", "head"]


def test_nothing_is_computed_and_nothing_stored() -> None:
    before = torch.rand(1)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    trace(f"{OWN}:odd")
    assert torch.rand(1) == expected != before
