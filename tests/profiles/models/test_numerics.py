"""`profiles.models.spec`: written where it differs, read back as it was."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InvalidSpec
from profiles.models.job import parse_model
from profiles.models.spec import (
    USUAL,
    DecoderSpec,
    MoeSpec,
    Numerics,
    RopeScaling,
    spec_document,
)
from tests.support.fact_settings import MOE, SPEC

# To what the first files hold.
ADDED = {
    "arrangement",
    "norm_bias",
    "numerics",
    "pattern",
    "attention_gate",
    "recurrence",
}
shares = st.floats(0, 0.99)
above = st.floats(1e-6, 1e9)
scalings = st.builds(
    RopeScaling,
    kind=st.sampled_from(["linear", "llama3"]),
    factor=above,
    low_freq_factor=st.floats(0.1, 1),
    high_freq_factor=st.floats(1.1, 9),
    original_positions=st.integers(1, 10**9),
)
some = st.builds(
    Numerics,
    norm_epsilon=shares,
    exact_gelu=st.booleans(),
    rope_theta=above,
    rope_scaling=st.none() | scalings,
    unrotated_every=st.integers(0, 9),
    head_rms_norm=st.booleans(),
    attention_dropout=shares,
    embedding_dropout=st.none() | shares,
    routing=st.sampled_from(["softmax", "sigmoid"]),
    routing_norm=st.none() | above,
    weighted_input=st.booleans(),
    balance=shares,
    longest=st.none() | st.integers(1, 10**9),
    not_computed=st.lists(st.text(max_size=9), max_size=2).map(tuple),
)


@given(some, st.booleans(), st.booleans())
def test_a_spec_is_read_back_as_it_was_written(
    numerics: Numerics, biased: bool, gated: bool
) -> None:
    moe = replace(MOE, shared_experts=1, shared_ffn_hidden=8, shared_gate=gated)
    spec = replace(SPEC, numerics=numerics, norm_bias=biased, moe=moe)
    text = json.dumps(spec_document(spec), allow_nan=False)
    assert parse_model(json.loads(text), what="spec").spec == spec


def test_defaults_are_left_out_as_in_files_of_before() -> None:
    spec = replace(SPEC, moe=MOE)
    document = spec_document(spec)
    assert document.keys() == asdict(spec).keys() - ADDED
    assert document["moe"].keys() == asdict(MOE).keys() - {"shared_gate", "latent"}
    assert parse_model(document, what="a file of before").spec == spec
    other = replace(spec, numerics=replace(USUAL, rope_theta=5.0))
    assert spec_document(other)["numerics"] == {"rope_theta": 5.0}


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (USUAL, {"routing": "hash"}),
        (USUAL, {"routing_norm": 0.0}),
        (USUAL, {"unrotated_every": -1}),
        (USUAL, {"longest": 0}),
        (RopeScaling(kind="linear", factor=2.0), {"kind": "yarn"}),
        (RopeScaling(kind="llama3", factor=2.0), {"low_freq_factor": 4.0}),
        (RopeScaling(kind="llama3", factor=2.0), {"original_positions": 0}),
        (SPEC, {"numerics": Numerics(qkv_clip=1.0)}),  # learned positions
        (
            replace(SPEC, moe=replace(MOE, capacity_factor=1.0)),
            {"numerics": Numerics(weighted_input=True)},
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(
    spec: Numerics | RopeScaling | DecoderSpec | MoeSpec, changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidSpec):
        replace(spec, **changes)  # type: ignore[arg-type]
