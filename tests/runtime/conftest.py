"""What tests of the command `execute` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runtime.cli import execute
from tests.support.forked_workers import Execute, forked


@pytest.fixture
def executing(capsys: pytest.CaptureFixture[str]) -> Iterator[Execute]:
    """Runs `execute` with workers that are forked: the exit code, stdout and stderr."""

    def running(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()  # what was printed before is none of its own
        code = execute.run(list(argv))
        return code, *capsys.readouterr()

    with forked():
        yield running
