"""What tests of the command `plan` share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.cli import plan

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def asking(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs `plan`: the exit code, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        code = plan.run(list(argv))
        return code, *capsys.readouterr()

    return run
