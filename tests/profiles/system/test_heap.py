"""`profiles.system.allocator`: pages that were freed are not touched for the first
time again."""

from __future__ import annotations

import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import numpy as np
from profiles.system.allocator import keep_heap

def step():
    return [np.ones(2**21) for _ in range(4)]  # 16 MiB each

kept = sys.argv[1] == "kept"
assert not kept or keep_heap()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 3 * 4 * 2**24 // 4096  # of all that the steps make


def faults(how: str) -> int:
    found = subprocess.run(
        [sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True
    )
    return int(found.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_a_step_finds_the_pages_of_the_one_before() -> None:
    assert faults("kept") < PAGES / 20
