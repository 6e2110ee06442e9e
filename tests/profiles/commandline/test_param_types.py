"""Values of options: what passes, what is refused, and in which words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.commandline.param_types import (
    LARGEST,
    Choice,
    FilePath,
    FloatRange,
    IntRange,
    offload,
    shown,
    some_of,
    text,
)


@given(st.integers(1, LARGEST))
def test_every_whole_number_in_range_passes(value: int) -> None:
    assert IntRange()(str(value)) == value


@given(st.integers().filter(lambda value: not 1 <= value <= LARGEST))
def test_no_whole_number_out_of_range_passes(value: int) -> None:
    with pytest.raises(click.BadParameter, match="must be a whole number >= 1"):
        IntRange()(str(value))


@given(st.floats())
def test_reals_are_finite_and_in_range(value: float) -> None:
    try:
        passed = FloatRange(0, 1000, strictly=True)(repr(value))
    except click.BadParameter:
        assert not 0 < value <= 1000
    else:
        assert passed == value
        assert 0 < value <= 1000


@pytest.mark.parametrize(
    ("read", "given_text"),
    [
        (IntRange(), ""),
        (IntRange(), "64x"),
        (IntRange(), "6.0"),
        (IntRange(), "9" * 5000),
        (FloatRange(1, 10), "nan"),
        (FloatRange(1, 10), "inf"),
        (FloatRange(1, 10), "0x2"),
        (FloatRange(0, 10, strictly=True), "0"),
        (Choice(("ring", "ulysses")), "RING"),
        (some_of("grad", "tp"), ""),
        (some_of("grad", "tp"), "grad,none"),
        (offload, ""),
        (offload, "optimizer=0.5"),
        (offload, "activations="),
        (offload, "activations=1.5"),
        (offload, "activations,activations"),
        (text, "  "),
        (text, "a\0b"),
        (FilePath(), "x" * 5000),
    ],
)
def test_refused(read: Callable[[str], Any], given_text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        read(given_text)
    assert str(caught.value).startswith(shown(given_text))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("none", "none"),
        ("optimizer", "optimizer"),
        ("activations", "activations"),
        ("activations=0", "activations=0"),
        ("parameters,optimizer", "optimizer,parameters"),
        ("activations=5e-1,parameters", "parameters,activations=0.5"),
    ],
)
def test_offload_has_one_spelling(written: str, meant: str) -> None:
    assert offload(written) == meant
    assert offload(meant) == meant


@given(st.sets(st.sampled_from(["grad", "param", "tp"]), min_size=1))
def test_some_of_keeps_the_set_and_settles_the_order(parts: set[str]) -> None:
    read = some_of("grad", "param", "tp")
    assert set(read(",".join(parts)).split(",")) == parts
    assert read(",".join(parts)) == read(",".join(sorted(parts)))


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(click.BadParameter, match="did you mean bf16"):
        Choice(("fp32", "bf16"))("bf61")


@given(st.text(max_size=200))
def test_what_is_shown_is_short_and_printable(words: str) -> None:
    assert shown(words).isprintable()
    assert len(shown(words)) <= 62 * len("\\U0010ffff")


def test_the_largest_ratio_is_everything() -> None:
    assert offload("activations=1") == "activations=1"
    assert math.isclose(float(offload("activations=0.125").partition("=")[2]), 0.125)
