"""`SweepOptions`: what is asked over a range, and the files of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.commandline import FilePath, PagePath, collected, option, text
from profiles.errors import Contradiction


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Each is None (or empty) where the command line does not say."""

    sweep: tuple[str, ...] = option(
        default=(),
        type=text,
        multiple=True,
        metavar="AXIS=V1,V2,…",
        help="An answer for each value of any option of the question or the layout, of "
        "device, intra-node-bandwidth and inter-node-bandwidth (GB/s one way per "
        "device, or with a unit: 400Gbit/s), intra-node-latency and inter-node-latency "
        "(us), device-price (USD/h); several: all combinations. Values with commas in "
        "them are written with ; between.",
    )
    csv: Path | None = option(
        type=FilePath(), metavar="FILE", help="With --sweep: also write it as CSV."
    )
    plot: Path | None = option(
        type=PagePath(),
        metavar="FILE.html",
        help="With --sweep: also write a page with charts of it.",
    )

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The files that are written."""
        return {"--csv": self.csv, "--plot": self.plot}

    def require_sweep(self, *, of_several: str = "--sweep") -> None:
        """Raise Contradiction for files of a sweep where none is asked for."""
        for name, file in self.outputs.items():
            if file is not None and not self.sweep:
                raise Contradiction(f"{name} is of several answers; give {of_several}")


sweep_options = collected("What if", SweepOptions, "what_if")
