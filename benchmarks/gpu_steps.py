"""Steps and peaks that a GPU of ours measured, beside what the catalogue's rates say.

    python -m benchmarks.gpu_steps [benchmarks/results/2026-11-27-h100]

The folder holds `kernels.json` of `benchmarks.layout_kernels` and the layouts, each of
which names the cluster that it is priced for. Nothing is fitted to these runs but three
habits of `execute`: gaps between kernels, what a step takes beside the model, and which
kernel attention runs as (costmodel/data/frameworks.json).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from costmodel.simulation.estimator import estimate
from costmodel.simulation.layout_files import job_of
from costmodel.simulation.serialization import parse_file
from profiles.files import read_json
from profiles.hardware.catalog import cluster
from profiles.units import GB, MS

FOLDER = Path(__file__).parent / "results" / "2026-11-27-h100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A layout's step and peak, measured and predicted."""

    name: str
    measured_s: float
    predicted_s: float
    measured_bytes: float
    predicted_bytes: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1.0


def steps(folder: Path = FOLDER) -> Iterator[Step]:
    """Every layout of *folder* that was measured."""
    document = read_json(folder / "kernels.json", what="measured layouts")
    assert isinstance(document, dict)
    for path in sorted((folder / "layouts").glob("*.json")):
        seen = document["runs"][path.stem]
        file = parse_file(read_json(path, what="layout file"))
        job = job_of(file)
        priced = estimate(job, cluster(str(file.cluster)), file.layout)
        layout = file.layout
        yield Step(
            name=f"{job.model}, {layout.precision_name}, "
            f"{job.global_batch // layout.micro_batches} × {layout.micro_batches} "
            f"sequences of {job.seq_len:,}",
            measured_s=median(seen["steps_s"]),
            predicted_s=priced.step_time_s,
            measured_bytes=seen["allocated"] - seen["before"],
            predicted_bytes=max(float(one.allocated) for one in priced.memory),
        )


def table(found: Sequence[Step]) -> Iterator[str]:
    """*found* in Markdown."""
    yield "| | measured | predicted | error | peak | predicted | error |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for one in found:
        yield (
            f"| {one.name} | {one.measured_s / MS:.0f} ms | {one.predicted_s / MS:.0f} "
            f"ms | {one.error:+.1%} | {one.measured_bytes / GB:.2f} GB | "
            f"{one.predicted_bytes / GB:.2f} GB | {one.memory_error:+.1%} |"
        )


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]) if arguments else FOLDER
    print("\n".join(table(list(steps(folder)))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
