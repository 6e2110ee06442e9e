"""How well fits of samples meet the samples that they have not seen.

    python benchmarks/sample_fit.py samples.json

Between: each sample is left out and fitted by all others of its kind, pass and
precision. Beyond: from the samples of less (or more) work than some sample, how far
the fit misses those that are so many times above (or below) the nearest one.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from costmodel.machine.measured import Measured
from costmodel.machine.sample_lookup import REACH, Array, Fit, Table, terms
from profiles.errors import MeshwrightError
from profiles.samples.files import read_samples

FEWEST = 3  # samples that a fit is made from
STEPS = (2.0, 4.0, REACH)


def measured(path: str) -> Measured:
    """The samples of a file, with as many ranks at work as were measured."""
    samples = read_samples(path)
    local = samples.cluster
    return Measured(
        samples=samples,
        device=next(iter(samples.operators)).device,
        ranks=int(samples.machine.get("ranks", "1")),
        shares_cores=local is not None and local.device.architecture == "cpu",
    )


def points(table: Table) -> tuple[Array, Array, Array]:
    """Shapes, seconds and work of a table's samples."""
    shapes = np.array(list(table.samples))
    seconds = np.array([one.seconds for one in table.samples.values()])
    return shapes, seconds, terms(table.kind, shapes)[:, 0]


def between(table: Table) -> Array:
    """|measured / fitted − 1| of each sample, fitted without it."""
    shapes, seconds, _ = points(table)
    count = len(seconds)
    others = (np.arange(count) != left_out for left_out in range(count))
    return np.array(
        [
            missed(table.kind, shapes, seconds, kept, place)
            for place, kept in enumerate(others)
            if count > FEWEST
        ]
    )


def beyond(table: Table) -> Iterator[tuple[float, float]]:
    """(how many times beyond the nearest sample, |measured / fitted − 1|)."""
    shapes, seconds, work = points(table)
    for edge in np.unique(work):
        for kept in (work < edge, work > edge):
            if kept.sum() < FEWEST:
                continue
            for place in np.flatnonzero(~kept & (work != edge)):
                near = work[kept].max() if work[place] >= edge else work[kept].min()
                times = max(work[place] / near, near / work[place])
                yield times, missed(table.kind, shapes, seconds, kept, int(place))


def missed(kind: str, shapes: Array, seconds: Array, kept: Array, place: int) -> float:
    fit = Fit(kind=kind, shapes=shapes[kept], seconds=seconds[kept])
    fitted = float(fit.at(shapes[place : place + 1])[0])
    return abs(float(seconds[place]) / fitted - 1.0)


def words(errors: Array) -> str:
    known = errors[~np.isnan(errors)]
    if not len(known):
        return "-"
    return f"median {np.median(known):5.1%}, p90 {np.quantile(known, 0.9):5.1%}"


def main() -> int:
    """Print both tables."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    try:
        found = measured(sys.argv[1])
    except MeshwrightError as error:
        print(error)
        return 2
    steps: dict[float, list[float]] = defaultdict(list)
    everything: list[float] = []
    for (kind, direction, precision), table in sorted(found.tables.items()):
        errors = between(table)
        everything += errors.tolist()
        print(f"{kind:16} {direction:16} {precision:5} {len(table.samples):4} ", end="")
        print(words(errors))
        for times, off in beyond(table):
            steps[min((s for s in STEPS if times <= s), default=np.inf)].append(off)
    print(f"\nbetween samples       {words(np.array(everything))}")
    for step in STEPS:
        print(f"up to {step:.0f} times beyond  {words(np.array(steps[step]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
