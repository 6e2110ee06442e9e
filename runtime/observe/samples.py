"""What a run saw, as samples: `execute --observe FILE` adds them to those in FILE.

A profile measures operators and collectives while little else happens; these are of
the same keys in the midst of training, and take the place of the profile's where both
have one. `plan --profile FILE` and `simulate --profile FILE` price by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from profiles.errors import Contradiction, InvalidFile
from profiles.measure import BACKEND, device_name, machine, spread, trimmed_mean
from profiles.samples import (
    ALONE,
    CollectiveKey,
    OperatorKey,
    Sample,
    Samples,
    read_samples,
    write_samples,
)
from runtime.observe.rank_reports import Exchanged

PROVENANCE: Final = "observed in training"
FEWEST: Final = 3  # calls, for a middle and a spread
OF_RUN: Final = ("layout_file", "step_time_s", "peak_allocated_bytes")  # what is kept


def observed(
    exchanged: Sequence[Mapping[str, Any]],
    operated: Sequence[Mapping[str, Any]],
    known: Samples,
    run: tuple[Mapping[str, Any], ...] = (),
) -> Samples:
    """The samples in a run's document, by the names of *known*'s machine; and the *run*
    as a whole, by which prices are calibrated."""
    level = known.cluster.islands[0].levels if known.cluster else ()
    return Samples(
        collectives=dict(_collectives(exchanged, [one.kind for one in level])),
        operators=dict(_operators(operated, known)),
        machine={"observed": machine.now()},
        runs=run,
    )


def add(path: Path, seen: Mapping[str, Any]) -> int:
    """Add what a run's document holds to the samples in *path*; how many there are.

    Raises as `read_samples`; the file is written whole or not at all.
    """
    known = read_samples(path)
    run = ({name: seen[name] for name in OF_RUN},) if "layout_file" in seen else ()
    found = observed(seen.get("exchanges", ()), seen.get("operators", ()), known, run)
    if len(found) or run:
        write_samples(known.merged(found), path)
    return len(found)


def require_of_here(path: Path, device: str, threads: int) -> None:
    """Raise unless *path* holds samples of this machine, to which a run may add.

    InvalidFile where it is none; Contradiction for another device or version.
    """
    import torch

    if not path.exists():
        raise InvalidFile(
            f"--observe {path}: there is no such profile; `profile --out {path}` makes "
            "one of this machine"
        )
    known = read_samples(path)
    here = machine.slug(machine.cpu_name()) if device == "cpu" else _gpu()
    release = f"torch-{torch.__version__}"
    software = f"{release}/{threads}-threads" if device == "cpu" else release
    names = (("device", here), ("software", software))
    for name, own in names:
        if known.machine.get(name) not in (None, own):
            raise Contradiction(
                f"--observe {path}: its samples are of {name} "
                f"{known.machine[name]}, this run is of {own}; name a profile that "
                "was taken here with as many ranks"
            )


def document(exchanged: Sequence[Exchanged]) -> list[dict[str, Any]]:
    """Collectives as a run's document has them."""
    return [
        {**asdict(one), "ranks": list(one.ranks), **summary(one.seconds)}
        for one in exchanged
    ]


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """The trimmed mean, spread and number of calls."""
    return {
        "seconds": trimmed_mean(seconds),
        "median_s": median(seconds),
        "spread": spread(seconds),
        "repeats": len(seconds),
    }


def _collectives(
    rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]
) -> Iterator[tuple[CollectiveKey, Sample]]:
    for row in rows:
        ranks = tuple(row["ranks"])
        if row["repeats"] < FEWEST or not kinds:
            continue
        key = CollectiveKey(
            fabric=kinds[0 if len(ranks) == 1 else -1],
            collective=row["collective"],
            ranks=ranks,
            groups_at_once=row["groups"],
            size_bytes=row["size_bytes"],
        )
        yield key, _sample(row, row["seconds"])


def _operators(
    rows: Sequence[Mapping[str, Any]], known: Samples
) -> Iterator[tuple[OperatorKey, Sample]]:
    facts = known.machine
    for row in rows:
        if row["repeats"] < FEWEST:
            continue
        key = OperatorKey(
            device=facts["device"],
            software=facts["software"],
            kind=row["kind"],
            direction=row["direction"],
            shape=tuple(row["shape"]),
            precision=row["precision"],
            backend=BACKEND,
            co_running=f"ranks={row['ranks']}" if row["ranks"] > 1 else ALONE,
        )
        before = known.operators.get(key)
        kept = before.saved_bytes if before else None
        yield key, replace(_sample(row, row["median_s"]), saved_bytes=kept)


def _sample(row: Mapping[str, Any], seconds: float) -> Sample:
    return Sample(
        seconds=seconds,
        spread=row["spread"],
        repeats=row["repeats"],
        provenance=PROVENANCE,
    )


def _gpu() -> str:
    import torch

    return device_name(torch.cuda.get_device_name(0))
