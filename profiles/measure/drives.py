"""The clock of a drive: a file of a run's kind, written and read bucket by bucket.

    write   buckets are filled and left, until all is on the drive
    read    each bucket is read ahead while the one before is summed, and let go

Nothing of it is in the page cache when it is read. The first round finds space on the
drive for the file's pages, and does not count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from profiles.errors import Unsupported
from profiles.hardware import Figure, Island
from profiles.system import BUCKET_BYTES, PAGE_BYTES, DriveFile, Part
from profiles.units import GB, MiB

SIZE_BYTES: Final = 256 * MiB
QUICK_BYTES: Final = 128 * MiB
ROUNDS: Final = 3  # that count
LONGEST_S: Final = 6.0  # of all rounds; one counts however slow the drive is


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveRates:
    """Bytes a second to and from the folder; 0 where no file can be made."""

    read: float = 0.0
    write: float = 0.0


UNMEASURED: Final = DriveRates()


def drive_rates(folder: Path, size_bytes: int = SIZE_BYTES) -> DriveRates:
    """What a drive does while this machine does nothing else; no file is left."""
    try:
        file = DriveFile(folder, size_bytes)
    except Unsupported:
        return UNMEASURED
    step = BUCKET_BYTES // PAGE_BYTES * PAGE_BYTES
    parts = [
        Part(first, min(step, size_bytes - first))
        for first in range(0, size_bytes, step)
    ]
    rounds: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(rounds) < 2 or (
        len(rounds) <= ROUNDS and time.perf_counter() - began < LONGEST_S
    ):
        rounds.append((_written_s(file, parts), _read_s(file, parts)))
    write_s, read_s = map(median, zip(*rounds[1:], strict=True))
    return DriveRates(read=size_bytes / read_s, write=size_bytes / write_s)


def slowest(rates: tuple[DriveRates, ...]) -> DriveRates:
    """What every node has."""
    return DriveRates(
        read=min(one.read for one in rates), write=min(one.write for one in rates)
    )


def with_drives(island: Island, rates: DriveRates, source: str) -> Island:
    """*island* with drives of *rates*, where they were measured."""
    if not rates.read or not rates.write:
        return island
    read, write = (
        Figure(value=rate / GB, unit="GB/s", source=source)
        for rate in (rates.read, rates.write)
    )
    return replace(island, drive_read=read, drive_write=write)


def _written_s(file: DriveFile, parts: list[Part]) -> float:
    began = time.perf_counter()
    for part in parts:
        _elements(file, part).fill(1.0)
        file.leave(part)
    file.settle()
    return time.perf_counter() - began


def _read_s(file: DriveFile, parts: list[Part]) -> float:
    began = time.perf_counter()
    file.ahead(parts[0])
    for part, following in zip(parts, (*parts[1:], None), strict=True):
        if following is not None:
            file.ahead(following)
        _elements(file, part).sum()
        file.forget(part)
    return time.perf_counter() - began


def _elements(
    file: DriveFile, part: Part
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    count = part.size_bytes // np.dtype(np.float32).itemsize
    return np.frombuffer(file.map, dtype=np.float32, count=count, offset=part.first)
