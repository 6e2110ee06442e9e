"""What a run is held against: a price made anew, or the one in the layout file."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from costmodel.options.pins import Pins
from costmodel.simulation.layout_files import job_of, read_layout_file
from costmodel.simulation.pricing import Pricing, from_options
from profiles.commandline.options import JobOptions
from profiles.samples.files import write_samples
from runtime.launch.report import run_view
from runtime.observe.prediction import Prediction, predict
from tests.support.sampled import job, samples

SEEN = {
    "steps": 1,
    "losses": [2.0],
    "wall_s": 1.0,
    "tokens_per_s_per_gpu": 9.0,
    "step_time_s": {"median": 0.5, "p10": 0.5, "p90": 0.5},
    "peak_allocated_bytes": [10**8, 2 * 10**8],
}


def planned(folder: Path) -> Pricing:
    """A layout of two ranks, its file, and the profile that it was priced with."""
    write_samples(samples(job(), ranks=2), folder / "samples.json")
    files = (folder / "samples.json",)
    found = JobOptions(model="gpt-tiny", gpus=2, profile=files)
    made = from_options(found, Pins(tp=2))
    made.write(folder / "layout.json")
    return made


def predicted(folder: Path, *profiles: Path) -> Prediction:
    file = read_layout_file(folder / "layout.json")
    return predict(file, job_of(file), profiles)


def test_the_profile_need_not_be_named_again(tmp_path: Path) -> None:
    made = planned(tmp_path)
    found = predicted(tmp_path)
    assert found.warnings == ()
    assert found.estimate is not None
    assert found.estimate.step_time_s == made.estimate.step_time_s
    named = predicted(tmp_path, tmp_path / "samples.json")
    assert named.estimate is not None
    assert named.estimate.document() == found.estimate.document()


@pytest.mark.parametrize("cluster", [None, "dgx-a100-80gb"])
@pytest.mark.parametrize("gone", [True, False])
def test_without_its_samples_the_files_own_estimate_stands(
    gone: bool, cluster: str | None, tmp_path: Path
) -> None:
    made = planned(tmp_path).estimate
    file = tmp_path / "layout.json"
    if cluster is not None:  # priced there without samples it would be another
        file.write_text(file.read_text().replace('"local"', f'"{cluster}"'))
    if gone:
        (tmp_path / "samples.json").unlink()
    else:
        write_samples(samples(job(), ranks=4), tmp_path / "samples.json")
    found = predicted(tmp_path)
    assert found.estimate is None
    why, then = found.warnings
    assert ("no such file" if gone else "has others now") in why
    assert "priced at then" in then
    document = {**SEEN, **found.against(SEEN)}
    assert document["predicted"]["step_time_s"] == made.step_time_s
    assert document["predicted"]["step_time_interval_s"] == made.interval_s
    assert document["error"] == {
        "step_time": made.step_time_s / 0.5 - 1,
        "peak_memory": made.peak_allocated_bytes / 2e8 - 1,
    }
    screen = Console(file=io.StringIO(), width=80)
    screen.print(run_view(document))
    assert f"{made.step_time_s:.3f} s" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_price_for_other_software_is_told_apart(tmp_path: Path) -> None:
    """`execute` runs this project's software, whichever one the plan was for."""
    asked = JobOptions(model="gpt-125m", gpus=8, framework="megatron-deepspeed")
    made = from_options(asked, Pins())
    made.write(tmp_path / "layout.json")
    found = predicted(tmp_path)
    assert found.estimate is not None
    assert found.estimate.step_time_s < made.estimate.step_time_s
    (said,) = (line for line in found.warnings if "planned at" in line)
    assert "--framework megatron-deepspeed" in said
    then = found.against(SEEN)["planned"]
    assert then["step_time_s"] == made.estimate.step_time_s
