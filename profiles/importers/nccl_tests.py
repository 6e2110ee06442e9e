"""Logs of nccl-tests (`all_reduce_perf` …): seconds of collectives by size.

`size` is of the whole buffer, as in our samples; the time is that out of place. The
list of ranks says how many GPUs of which hosts took part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from profiles.errors import InvalidFile
from profiles.hardware import Cluster
from profiles.samples import CollectiveKey, Sample
from profiles.units import US

COLLECTIVES: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "shift",
}
_TEST: Final = re.compile(rf"({'|'.join(COLLECTIVES)})_perf")
_RANK: Final = re.compile(
    r"#\s+Rank\s+\d+(?:\s+Group\s+\d+)?\s+Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+"
    r"\s+\[[^\]]*\]\s+(\S.*?)\s*$"
)
_ITERATIONS: Final = re.compile(r"(?<!warmup )\biters:\s*(\d+)")
_ROW: Final = re.compile(r"\s*\d+\s+\d+\s")
_NUMBERS: Final = 8  # time, algbw, busbw and #wrong, out of place and in place
_LONGEST_US: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a log says: GPUs of each host, their name, seconds by collective and size.

    `seconds` has out of place and in place, None where a log leaves it out.
    """

    source: str
    hosts: tuple[int, ...]
    device: str
    repeats: int
    seconds: dict[tuple[str, int], tuple[float, float | None]]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Innermost level first, as sample keys have them."""
        each, nodes = self.hosts[0], len(self.hosts)
        return (each,) if nodes == 1 else (each, nodes)


def is_nccl_tests(text: str) -> bool:
    """Whether *text* looks like a log of nccl-tests."""
    return "busbw" in text and bool(_TEST.search(text) or "nThread" in text)


def read_nccl_tests(text: str, source: str) -> Log:
    """A log of one or several tests over the same ranks; the file's name may say
    which, where the log does not.

    Raises InvalidFile, naming *source*, for a log that does not say what was measured.
    """
    lines = text.splitlines()
    ranks = [match for line in lines if (match := _RANK.match(line))]
    hosts = Counter(match[1] for match in ranks)
    if not hosts:
        raise InvalidFile(f"{source} lists no ranks (# Rank 0 … on HOST device 0 …)")
    if len(set(hosts.values())) > 1:
        raise InvalidFile(
            f"{source}: hosts have {sorted(set(hosts.values()))} ranks; a sample is of "
            "as many on each node"
        )
    iterations = _ITERATIONS.search(text)
    seconds = dict(_rows(lines, source))
    if not seconds:
        raise InvalidFile(f"{source} has no rows of sizes and times")
    return Log(
        source=source,
        hosts=tuple(hosts.values()),
        device=ranks[0][2],
        repeats=int(iterations[1][:9]) if iterations else 1,
        seconds=seconds,
    )


def _rows(
    lines: list[str], source: str
) -> Iterator[tuple[tuple[str, int], tuple[float, float | None]]]:
    named = _TEST.search(source)
    test = named[1] if named else None
    for number, line in enumerate(lines, 1):
        match = _TEST.search(line)
        if match:
            test = match[1]
        if not _ROW.match(line):
            continue
        if test is None:
            raise InvalidFile(
                f"{source} does not say which test it is of; call the file after it, "
                "such as all_reduce_perf.txt"
            )
        cells = line.split()
        size, times = int(cells[0][:18]), cells[-_NUMBERS:]
        if len(cells) < 2 + _NUMBERS or _seconds(times[0]) is None:
            raise InvalidFile(
                f"{source}, line {number}: {line.strip()[:60]!r} is not a row of "
                "nccl-tests (size, count, …, time, algbw, busbw, #wrong, twice)"
            )
        if size:
            out = _seconds(times[0])
            assert out is not None, "looked at above"
            yield (COLLECTIVES[test], size), (out, _seconds(times[4]))


def _seconds(cell: str) -> float | None:
    try:
        us = float(cell)
    except ValueError:
        return None
    return us * US if 0 < us < _LONGEST_US else None


def samples_of(log: Log, cluster: Cluster) -> dict[CollectiveKey, Sample]:
    """The samples of *log* over the links of *cluster*.

    Raises InvalidFile where it ran on more GPUs of a node than the cluster's have.
    """
    island = cluster.island
    each = log.hosts[0]
    if each > island.devices_per_node:
        raise InvalidFile(
            f"{log.source} has {each} ranks a host, and nodes of {cluster.name} "
            f"have {island.devices_per_node} GPUs"
        )
    level = island.levels[0 if len(log.hosts) == 1 else -1]
    return {
        CollectiveKey(
            fabric=level.kind, collective=name, ranks=log.ranks, size_bytes=size
        ): Sample(
            seconds=out,
            spread=0.0 if within is None else abs(within / out - 1),
            repeats=log.repeats,
            provenance="nccl-tests",
        )
        for (name, size), (out, within) in log.seconds.items()
    }
