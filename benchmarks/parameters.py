"""Every parameter that was fitted to runs: prior, value, standard error, runs.

    python -m benchmarks.parameters

Those of step times, then those of intervals (`costmodel.simulation.uncertainty`).
Rates of kernels and links have their own files, each with its source and residual
(`data/rates`).
"""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from costmodel.machine.coefficients import load_coefficients
from costmodel.simulation.uncertainty import calibration
from profiles.commandline.terminal import console


def main() -> None:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("parameter")
    for title in ("prior", "value", "error", "runs"):
        table.add_column(title, justify="right", no_wrap=True)
    fitted = load_coefficients().entries
    for item in fitted:
        table.add_row(
            item.name,
            f"{item.prior:.3g} ± {item.spread:.0%}",
            f"{item.value:.3g}",
            f"{item.error:.1%}",
            f"{item.rows:,}",
        )
    screen = console()
    screen.print(table)
    screen.print(f"\n{len(fitted)} parameters of step times; of intervals:")
    for name, value in asdict(calibration()).items():
        if isinstance(value, float | int):
            screen.print(f"{name:18}{value:.4g}")


if __name__ == "__main__":
    main()
