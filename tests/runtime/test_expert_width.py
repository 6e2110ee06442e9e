"""Experts that two ranks share, each with a part of their width, against whole ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from profiles.models.spec import DecoderSpec
from runtime.models.moe import ExpertMlp
from runtime.parallel import expert_parallel
from tests.runtime.models.test_experts import BIASED, GATED, dropping, mixture
from tests.runtime.ranks import on_ranks

SPECS = {
    "gated": GATED,
    "biased": BIASED,
    "dropping-biased": dropping(BIASED, 1.0),
}
RANKS = 2


def given(spec: DecoderSpec, rank: int) -> tuple[Tensor, Tensor]:
    """A stream of its own for each rank, and the gradient of what is made of it."""
    torch.manual_seed(rank)
    stream = torch.randn(2, 6, spec.hidden, requires_grad=True)
    return stream, torch.randn(2, 6, spec.hidden)


def passed(mlp: ExpertMlp, spec: DecoderSpec, rank: int) -> dict[str, Tensor]:
    mlp.balance.scale = 0.0
    stream, upward = given(spec, rank)
    made = mlp(stream)
    made.backward(upward)
    assert stream.grad is not None
    return {"made": made.detach(), "stream": stream.grad}


def cut(rank: int, names: list[str]) -> dict[str, Any]:
    """Outputs, gradients of the streams, and whole gradients of the experts."""
    axes = ("edp", "ep", "etp")
    mesh = init_device_mesh("cpu", (1, 1, RANKS), mesh_dim_names=axes)
    found: dict[str, Any] = {}
    for name in names:
        mlp = mixture(SPECS[name])
        expert_parallel.split(mlp, mesh)
        seen = passed(mlp, SPECS[name], rank)
        for key, parameter in mlp.experts.named_parameters():
            assert isinstance(parameter.grad, DTensor)
            seen[key] = parameter.grad.full_tensor()
        found[name] = seen
    return found


@pytest.mark.slow
def test_two_ranks_make_of_their_rows_what_whole_experts_do() -> None:
    """The gradients of experts are those of both ranks' rows together."""
    ranks = on_ranks(RANKS, cut, list(SPECS))
    for name, spec in SPECS.items():
        whole = mixture(spec)
        for rank in range(RANKS):
            for key, wanted in passed(whole, spec, rank).items():
                torch.testing.assert_close(ranks[rank][name][key], wanted)
        for key, parameter in whole.experts.named_parameters():
            for rank in range(RANKS):
                torch.testing.assert_close(ranks[rank][name][key], parameter.grad)
