"""`meshwright models` and its like, and numbers as people write them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click import BadParameter
from hypothesis import given
from hypothesis import strategies as st

from profiles.commandline import Count
from profiles.commandline.main import LISTS, main
from profiles.hardware.catalog import cluster_names, device_names
from profiles.models.catalog import names

Ask = Callable[..., tuple[int, str, str]]
KNOWN = {"models": names(), "clusters": cluster_names(), "devices": device_names()}


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asking(*argv: str) -> tuple[int, str, str]:
        return main(list(argv)), *capsys.readouterr()

    return asking


@pytest.mark.parametrize("what", KNOWN)
def test_a_list_has_every_entry_of_its_catalogue(ask: Ask, what: str) -> None:
    code, out, err = ask(what, "--json")
    assert (code, err) == (0, "")
    assert tuple(one["name"] for one in json.loads(out)[what]) == KNOWN[what]
    code, out, err = ask(what)
    assert (code, err) == (0, "")
    assert all(f"{name} " in out for name in KNOWN[what])


@pytest.mark.parametrize("what", LISTS)
def test_words_narrow_a_list(ask: Ask, what: str) -> None:
    every = json.loads(ask(what, "--json")[1])[what]
    word = every[0]["name"][:4].upper()
    some = json.loads(ask(what, word, "--json")[1])[what]
    assert 0 < len(some) < len(every)
    assert every[0] in some
    code, out, err = ask(what, every[0]["name"] + "x")
    assert (code, out) == (2, "")
    assert f"did you mean {every[0]['name']}" in err


def test_a_list_has_help_of_its_own(ask: Ask) -> None:
    for flag in ("-h", "--help"):
        assert ask("models", flag)[1].startswith("Usage: meshwright models ")


@given(number=st.floats(1e-3, 999), suffix=st.sampled_from(["", "k", "M", "b", "T"]))
def test_a_suffix_is_a_power_of_a_thousand(number: float, suffix: str) -> None:
    scale = {"": 1, "k": 1e3, "M": 1e6, "b": 1e9, "T": 1e12}[suffix]
    count = Count(0, 1e18)
    assert count(f"{number!r}{suffix}") == pytest.approx(number * scale)


@pytest.mark.parametrize("wrong", ["300X", "B", "", "1e30T", "-3M", "nan", "3 B B"])
def test_what_is_no_number_is_refused(wrong: str) -> None:
    with pytest.raises(BadParameter):
        Count(1, 1e18)(wrong)
