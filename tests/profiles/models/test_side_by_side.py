"""Blocks with attention and MLP side by side: one norm, two products, one sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import backward_collectives, forward_collectives
from profiles.errors import Unsupported
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.graph import PRODUCTS
from profiles.models.param_count import parameters
from profiles.models.spec import DecoderSpec


def palm(**changes: Any) -> DecoderSpec:
    spec = model("palm-8b").spec
    assert isinstance(spec, DecoderSpec)
    return replace(spec, **changes)


def test_palm_has_the_parameters_it_is_named_after() -> None:
    """Table 1 of the paper: 8.63, 62.50 and 540.35 billion."""
    for name, billions in (("8b", 8.63), ("62b", 62.50), ("540b", 540.35)):
        count = parameters(model(f"palm-{name}").spec).total
        assert count == pytest.approx(billions * 1e9, rel=1e-3)


@pytest.mark.parametrize("side_by_side", [True, False])
def test_one_sum_a_pass_where_the_halves_stand_side_by_side(side_by_side: bool) -> None:
    layer = decoder_graph(palm(parallel_block=side_by_side)).block("layer")
    degrees = Degrees(
        tp=np.asarray(4),
        cp=np.asarray(1),
        micro_batch=np.asarray(1),
        seq_len=2048,
        sequence_parallel=False,
    )
    for collectives in (forward_collectives, backward_collectives):
        sent = [
            item.kind
            for operator in layer.operators
            for item in collectives(operator, layer, degrees, precision("bf16"))
        ]
        assert sent == ["all_reduce"] * (1 if side_by_side else 2)
    products = [item for item in layer.operators if item.kind in PRODUCTS]
    assert len(products) == (2 if side_by_side else 4)


def test_halves_with_unlike_biases_are_refused() -> None:
    with pytest.raises(Unsupported, match="biases of some products"):
        decoder_graph(palm(mlp_bias=True), "gpt-j")
