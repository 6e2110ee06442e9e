"""Row B4: predicted against measured memory, part by part."""

from __future__ import annotations

import pytest
import torch

import costmodel
from profiles.trace import module_of
from tests.support.measured_module import OWN, loss_of, measured
from tests.support.rows import Obtained


@pytest.mark.row(
    "B4",
    "activations of WRN-28-2 and of a small transformer, over those measured",
    expected="1 (5 %), and weights, gradients and optimizer exact",
    evidence="computed",
)
@pytest.mark.parametrize("name", ["wrn_28_2", "transformer"])
def test_parts_are_those_of_a_step(name: str, obtained: Obtained) -> None:
    """Sohoni et al. (2019) split a step's memory into these parts."""
    reference = f"{OWN}:{name}"
    (found,) = costmodel.simulate(
        reference,
        gpus=1,
        cluster="dgx-a100-80gb",
        precision="fp32",
        optimizer="adamw",
        global_batch=2,
        micro_batch=2,
        zero=0,
    ).to_dict()["memory"]
    weights, gradients, moments = states_of(reference)
    assert found["parameters"] == weights
    assert found["gradients"] == gradients
    assert found["optimizer"] == moments
    ratio = found["activations"] / measured(reference).saved_bytes
    obtained(f"{ratio:.3f}")
    assert ratio == pytest.approx(1, abs=0.05)


def states_of(reference: str) -> tuple[int, int, int]:
    """Bytes of a step's weights, gradients and moments, as PyTorch holds them."""
    module, example = module_of(reference, meta=False)
    given = example.with_batch(2)
    optimizer = torch.optim.AdamW(module.parameters())
    loss_of(module(*given.args, **given.kwargs)).backward()
    optimizer.step()
    own = [*module.parameters()]
    moments = [
        one
        for state in optimizer.state.values()
        for one in state.values()
        if one.ndim  # not the count of steps
    ]
    gradients = [one.grad for one in own if one.grad is not None]
    return tuple(
        sum(one.nbytes for one in tensors) for tensors in (own, gradients, moments)
    )  # type: ignore[return-value]
