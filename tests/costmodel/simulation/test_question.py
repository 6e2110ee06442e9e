"""Defaults that hang on the question: the batch of a step."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.simulation.question import MOST_TOKENS, usual_batch
from profiles.models.catalog import model
from tests.support.commanded import simulate

MODELS = st.sampled_from(("gpt-125m", "gpt-13b", "llama3-8b", "llama3-405b", "t5-11b"))


@given(name=MODELS, gpus=st.integers(16, 4096))
def test_the_catalogues_batch_is_that_of_its_own_sequences(
    name: str, gpus: int
) -> None:
    found = model(name)
    assert usual_batch(found, found.seq_len, gpus) == found.global_batch


@given(name=MODELS, seq_len=st.integers(1, 2**22), gpus=st.integers(1, 20_000))
def test_a_step_has_about_as_many_tokens_at_any_length(
    name: str, seq_len: int, gpus: int
) -> None:
    """Of several sequences at least half as many as it may have; and a batch that
    halving cannot make smaller is the smallest."""
    found = model(name)
    usual = found.global_batch * found.seq_len
    most = min(usual * sqrt(2), gpus * MOST_TOKENS)
    batch = usual_batch(found, seq_len, gpus)
    assert batch >= 1
    if batch % 2 == 0:
        assert batch * seq_len <= max(most, seq_len)
        assert batch * seq_len >= min(usual / sqrt(2), most / 2) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("options", "batch", "tokens"),
    [
        (("--gpus", "64"), 1536, "3.15 M"),
        (("--gpus", "64", "--seq-len", "131072", "--cp", "8"), 24, "3.15 M"),
        (("--gpus", "1"), 384, "786 K"),
        (("--gpus", "1", "--global-batch", "1536"), 1536, "3.15 M"),
    ],
)
def test_the_headline_says_tokens_a_step(
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    batch: int,
    tokens: str,
) -> None:
    assert simulate("--model", "gpt-1.3b", *options) == 0
    said = capsys.readouterr()
    headline = " ".join(said.out.partition("\n\n")[0].split())  # wide ones are folded
    assert f"batch {batch:,} sequences of " in headline
    assert f"{tokens} tokens a step" in headline
    assumed = f"global-batch {batch}" in said.out
    assert assumed == ("--global-batch" not in options)
    assert (f"global batch {batch} of sequences" in said.err) == (
        assumed and batch != 1536
    )
