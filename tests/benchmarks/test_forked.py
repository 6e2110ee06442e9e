"""`benchmarks.forked`: work in a process of its own."""

from __future__ import annotations

import subprocess
import sys

ASKED = """
import os
from benchmarks.forked import forked

own = os.getpid()
first, second = (
    forked(lambda: [os.getpid(), os.environ["TORCHELASTIC_RUN_ID"]], number=number)
    for number in (0, 1)
)
assert len({own, first[0], second[0]}) == 3
print(first[1], second[1], os.environ.get("TORCHELASTIC_RUN_ID"))
"""
FAILING = """
from benchmarks.forked import forked

forked(lambda: 1 / 0, number=0)
print("not reached")
"""


def _python(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_work_has_a_process_and_a_name_to_meet_by() -> None:
    found = _python(ASKED)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["run-0", "run-1", "None"]


def test_work_that_fails_ends_who_asked_for_it_and_says_why() -> None:
    found = _python(FAILING)
    assert found.returncode == 1
    assert "ZeroDivisionError" in found.stderr
    assert "not reached" not in found.stdout
