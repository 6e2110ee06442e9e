"""The MLP of a layer computes the function that its spec names, gated or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from profiles.models.catalog import model
from profiles.models.spec import DecoderSpec
from runtime.models.mlp import Mlp

FUNCTIONS = {
    "gelu": lambda given: F.gelu(given, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_is_supported(name: str, gated: bool) -> None:
    spec = model("gpt-tiny").spec
    assert isinstance(spec, DecoderSpec)
    mlp = Mlp(replace(spec, activation=name, gated_mlp=gated), width=24)
    stream = torch.randn(2, 3, spec.hidden)
    first = mlp.gate if mlp.gate is not None else mlp.up
    inner = FUNCTIONS[name](first(stream))
    wanted = mlp.down(inner * mlp.up(stream) if gated else inner)
    torch.testing.assert_close(mlp(stream), wanted)
