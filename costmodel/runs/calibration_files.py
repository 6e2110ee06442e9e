"""A calibration as a file: format "meshwright/calibration", version 1.

It holds the hash of the coefficients that it changes: under others of another release
it would change what has changed already, so it is refused, and the rows are to be given
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec

from costmodel.machine import Calibration, Parameter, load_coefficients, read_profile
from costmodel.runs.calibrate import calibrate
from profiles.commandline import CalibrationOptions, JobOptions
from profiles.errors import Contradiction, InvalidFile
from profiles.files import decode, read_json, shown, write_text

FORMAT: Final = "meshwright/calibration"
VERSION: Final = 1
WHAT: Final = "the calibration"


def calibration_of(
    options: CalibrationOptions, job: JobOptions | None = None
) -> Calibration | None:
    """What the options ask for, saved where they say; None where they ask for nothing.

    Raises Contradiction, InvalidFile, and StaleProfile for an unusable `--profile`.
    """
    if options.calibrate and options.calibration is not None:
        raise Contradiction(
            "--calibration is a finished calibration; leave one of the two out"
        )
    if options.calibration is not None:
        if options.save_calibration is not None:
            raise Contradiction(
                "--save-calibration keeps what --calibrate makes; --calibration "
                "is a file already"
            )
        return read_calibration(options.calibration)
    if not options.calibrate:
        if options.save_calibration is not None:
            raise Contradiction(
                "--save-calibration keeps what --calibrate makes; give --calibrate too"
            )
        return None
    profile = read_profile(job.profile) if job is not None else None
    found = calibrate(options.calibrate, profile=profile)
    if options.save_calibration is not None:
        write_calibration(found, options.save_calibration)
    return found


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write it whole or not at all; raises InvalidFile."""
    document = {"format": FORMAT, "version": VERSION, **asdict(calibration)}
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    write_text(path, text.decode() + "\n")


def read_calibration(path: Path) -> Calibration:
    """What `write_calibration` wrote.

    Raises InvalidFile for anything else, and for one of other coefficients.
    """
    document = read_json(path, what=WHAT)
    top = dict(document) if isinstance(document, dict) else {}
    if top.pop("format", None) != FORMAT:
        raise InvalidFile(
            f"--calibration {shown(path)} is not a calibration: its format is not "
            f"{FORMAT!r}; --save-calibration writes one (a table of runs is given by "
            "--calibrate)"
        )
    version = top.pop("version", None)
    if version != VERSION:
        raise InvalidFile(
            f"--calibration {shown(path)} has version {version!r}; this release reads "
            f"version {VERSION}: calibrate again from the rows, by --calibrate"
        )
    found = decode(top, Calibration, what=f"{WHAT} {shown(path)}")
    if found.coefficients != load_coefficients().digest:
        raise InvalidFile(
            f"--calibration {shown(path)} was made from other coefficients than this "
            "release has: calibrate again from the rows, by --calibrate"
        )
    _require_whole(found, shown(path))
    return found


def _require_whole(found: Calibration, path: str) -> None:
    """Raise InvalidFile for numbers that are not those of a calibration."""
    known = load_coefficients().values
    for one in (*found.step, *found.memory):
        if not _is_possible(one):
            raise InvalidFile(f"{WHAT} {path}: {one.name} has impossible numbers")
        if "/" not in one.name and one.name not in known:
            raise InvalidFile(f"{WHAT} {path}: no coefficient is called {one.name!r}")
    size = len(found.step)
    square = all(
        len(table) == size and all(len(row) == size for row in table)
        for table in (found.before, found.after)
    )
    numbers = [
        *(one for table in (found.before, found.after) for row in table for one in row),
        *found.noise,
        *found.memory_narrower.values(),
        *(slope for run in found.runs for slope in run.slopes.values()),
        *(one for run in found.runs for one in run.degrees),
    ]
    if not square or not all(map(isfinite, numbers)) or min(found.noise) <= 0:
        raise InvalidFile(f"{WHAT} {path}: its covariances are not those of its names")
    if found.step and not found.runs:
        raise InvalidFile(f"{WHAT} {path}: it has no runs")
    if len({len(run.degrees) for run in found.runs}) > 1:
        raise InvalidFile(f"{WHAT} {path}: its runs differ in their degrees")


MOST_CHANGE: Final = 20.0  # times as much or as little; of GiB a thousand


def _is_possible(one: Parameter) -> bool:
    numbers: Sequence[float] = (one.before, one.after, one.spread, one.error)
    if not all(map(isfinite, numbers)) or min(one.spread, one.error) < 0:
        return False
    if one.name.startswith("beside/"):
        return abs(one.after - one.before) <= 1000
    if min(one.before, one.after) <= 0:
        return False
    return 1 / MOST_CHANGE <= one.after / one.before <= MOST_CHANGE
