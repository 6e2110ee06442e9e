"""The parameter budget: few numbers, each with its standard error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodel.machine import coefficients as budget
from costmodel.machine.coefficients import load_coefficients
from profiles.errors import InvalidFile

MOST = 60  # fitted to runs, in all


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    load_coefficients.cache_clear()
    yield
    load_coefficients.cache_clear()


def test_at_most_sixty_are_fitted_each_with_its_error() -> None:
    found = load_coefficients().entries
    assert len(found) <= MOST
    assert len({item.name for item in found}) == len(found)
    for item in found:
        assert min(item.value, item.prior, item.spread, item.error) > 0, item.name
        assert item.meaning


def test_a_damaged_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "coefficients.json"
    path.write_text("[{]")
    monkeypatch.setattr(budget, "PATH", path)
    with pytest.raises(InvalidFile, match="coefficients"):
        load_coefficients()
