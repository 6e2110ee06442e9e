"""`CalibrationOptions`: runs of the user's own, as `simulate` and `plan` take them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.commandline.options import collected, option
from profiles.commandline.param_types import FilePath


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions:
    """Runs of the user's own, by which prices are calibrated."""

    calibrate: tuple[Path, ...] = option(
        default=(),
        type=FilePath(),
        multiple=True,
        metavar="SEEN",
        help="Runs of your own: a table of runs with measured columns, or what "
        "`execute --json` or `--observe` wrote; may be given several times.",
    )
    calibration: Path | None = option(
        type=FilePath(),
        metavar="FILE",
        help="A file that --save-calibration wrote, instead of runs.",
    )
    save_calibration: Path | None = option(
        type=FilePath(), metavar="FILE", help="Write the calibration to a file."
    )

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read."""
        return (*self.calibrate, *([self.calibration] if self.calibration else []))


calibration_options = collected("Calibration", CalibrationOptions, "learning")
