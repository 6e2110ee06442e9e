"""The parameter budget: few numbers, each with its standard error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodel.machine import coefficients as budget
from costmodel.machine.coefficients import Parameter, fitted_to_runs
from profiles.errors import InvalidFile

MOST = 60  # fitted to runs, in all


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    fitted_to_runs.cache_clear()
    yield
    fitted_to_runs.cache_clear()


def test_at_most_sixty_are_fitted_each_with_its_error() -> None:
    found = fitted_to_runs()
    assert len(found) <= MOST
    assert len({item.name for item in found}) == len(found)
    for item in found:
        assert min(item.value, item.prior, item.spread, item.error) > 0, item.name
        assert item.meaning


def test_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "coefficients.json"
    monkeypatch.setattr(budget, "PATH", path)
    assert fitted_to_runs() == ()
    fitted_to_runs.cache_clear()
    path.write_text(
        '[{"name": "host/x", "meaning": "m", "prior": 1.0, "spread": 0.1, '
        '"source": "s", "value": 1.1, "error": 0.02, "rows": 7}]'
    )
    (found,) = fitted_to_runs()
    assert found == Parameter(
        name="host/x", meaning="m", prior=1, spread=0.1, value=1.1, error=0.02, rows=7
    )


def test_a_damaged_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "coefficients.json"
    path.write_text("[{]")
    monkeypatch.setattr(budget, "PATH", path)
    with pytest.raises(InvalidFile, match="coefficients"):
        fitted_to_runs()
