"""Modules that cannot be traced, and factories that are none."""

from __future__ import annotations

import pytest

from profiles import load_model
from profiles.errors import InvalidSpec, MeshwrightError, UnknownName, Unsupported
from profiles.models import parse_model
from tests.support.measured_module import OWN

WRONG: list[tuple[str, type[MeshwrightError], str]] = [
    ("NOT_A_FACTORY", InvalidSpec, "of type int, not a function"),
    ("no_module", InvalidSpec, "must return an nn.Module"),
    ("no_inputs", InvalidSpec, "example_inputs()"),
    ("leaves", InvalidSpec, r"SystemExit: 3 \(user_modules.py, line"),
    ("gives_places", Unsupported, "can be trained: let its forward return a loss"),
    ("raises", InvalidSpec, r"ValueError: no weights here \(user_modules.py, line"),
    ("branches", Unsupported, r"user_modules.py, line \d+, in forward .* numbers in a"),
    ("selects", Unsupported, r"user_modules.py, line \d+, in forward .* numbers in a"),
    ("fixes", Unsupported, "for any batch"),
    ("wrong", Unsupported, r"user_modules.py, line \d+, in forward: RuntimeError"),
    ("unets", UnknownName, "did you mean"),
]


@pytest.mark.parametrize(("name", "error", "said"), WRONG)
def test_what_does_not_trace_is_refused_in_one_line(
    name: str,
    error: type[MeshwrightError],
    said: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(error, match=said) as refused:
        load_model(f"{OWN}:{name}")
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2
    assert capfd.readouterr() == ("", "")


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidSpec, match="no module 'nowhere'"):
        load_model("nowhere.at_all:model")


def test_sequences_are_as_long_as_the_inputs() -> None:
    with pytest.raises(Unsupported, match="sequences of 24"):
        load_model(f"{OWN}:lstm", seq_len=12)
    assert load_model(f"{OWN}:lstm", seq_len=24).seq_len == 24


def test_a_file_imports_nothing() -> None:
    with pytest.raises(Unsupported, match="give --model os:getcwd too"):
        parse_model({"module": "os:getcwd"}, what="job.model")
    with pytest.raises(InvalidSpec, match="alone"):
        parse_model({"module": "os:getcwd", "layers": 2}, what="job.model")


def test_a_kernel_of_ones_own_is_priced_by_its_bytes_and_named() -> None:
    found = load_model(f"{OWN}:custom")
    remarks = getattr(found.spec, "remarks", ())
    assert any("meshwright_tests.swirl" in one for one in remarks)
    assert any("mean square" in one for one in remarks)
