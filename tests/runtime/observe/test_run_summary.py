"""A run's samples join those of a profile; probes are found beside a layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import Contradiction, InvalidFile, MeshwrightError
from profiles.samples.files import read_samples, write_samples
from profiles.samples.table import CollectiveKey, OperatorKey, Sample, Samples
from runtime.launch import probe as probing
from runtime.launch.probe import Probed, probe_files, words
from runtime.observe import samples as sampling
from runtime.observe.prediction import Missed, Prediction, largest
from runtime.train.options import RunOptions
from tests.runtime.run_options import run_options

KEY = OperatorKey(
    device="cpu-x",
    software="torch-9/1-threads",
    kind="matmul",
    direction="forward",
    shape=(32, 16, 8),
    precision="fp32",
    backend="eager",
    co_running="ranks=2",
)
KNOWN = Sample(
    seconds=1.0, spread=0.1, repeats=9, provenance="measured", saved_bytes=64.0
)
ROW: dict[str, Any] = {"seconds": 2.5, "median_s": 2.0, "spread": 0.2, "repeats": 8}
SEEN: dict[str, Any] = {
    "operators": [
        {
            "kind": "matmul",
            "direction": "forward",
            "shape": [32, 16, 8],
            "precision": "fp32",
            "ranks": 2,
            **ROW,
        }
    ],
    "exchanges": [
        {
            "axis": "tp",
            "collective": "all_reduce",
            "ranks": [2],
            "groups": 1,
            "size_bytes": 1024,
            "count": 4,
            **ROW,
        }
    ],
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    from profiles.hardware import catalog

    path = tmp_path / "samples.json"
    facts = {"device": "cpu-x", "software": "torch-9/1-threads", "ranks": "2"}
    cluster = replace(catalog.cluster("dgx-a100-80gb"), name="local")
    samples = Samples(operators={KEY: KNOWN}, machine=facts, cluster=cluster)
    write_samples(samples, path)
    return path


def test_what_was_seen_takes_the_profiles_place(profile: Path) -> None:
    assert sampling.add(profile, SEEN) == 2
    found = read_samples(profile)
    sample = found.operators.get(KEY)
    assert sample is not None
    assert (sample.seconds, sample.provenance) == (2.0, sampling.PROVENANCE)
    assert sample.saved_bytes == KNOWN.saved_bytes
    key = CollectiveKey(
        fabric=_fabric(found), collective="all_reduce", ranks=(2,), size_bytes=1024
    )
    exchanged = found.collectives.get(key)
    assert exchanged is not None
    assert exchanged.seconds == 2.5
    assert "observed" in found.machine


def _fabric(samples: Samples) -> str:
    assert samples.cluster is not None
    return samples.cluster.islands[0].levels[0].kind


def test_the_run_itself_is_kept_for_calibration(profile: Path) -> None:
    run = {
        "layout_file": {"gpus": 2},
        "step_time_s": {"median": 1.5},
        "peak_allocated_bytes": [7, 8],
    }
    assert sampling.add(profile, {**SEEN, **run, "losses": [1.0]}) == 2
    assert sampling.add(profile, run) == 0  # nothing was heard, and yet it ran
    assert read_samples(profile).runs == (run, run)


def test_few_calls_are_no_sample(profile: Path) -> None:
    few = {name: [{**SEEN[name][0], "repeats": 2}] for name in SEEN}
    before = profile.read_bytes()
    assert sampling.add(profile, few) == 0
    assert profile.read_bytes() == before


def test_another_machines_profile_is_refused(profile: Path) -> None:
    with pytest.raises(Contradiction, match="taken here"):
        sampling.require_of_here(profile, "cpu", 1)
    with pytest.raises(InvalidFile, match="there is no such profile"):
        sampling.require_of_here(profile.with_name("none.json"), "cpu", 1)


def test_the_part_that_was_missed_most_is_named() -> None:
    rows = [
        Missed(part="compute", measured_s=1.0, predicted_s=1.1),
        Missed(part="bubble", measured_s=0.5, predicted_s=0.2),
        Missed(part="tp all-reduce", measured_s=9.0, predicted_s=1.0, collective=True),
    ]
    documents = [
        {
            "part": row.part,
            "measured_s": row.measured_s,
            "predicted_s": row.predicted_s,
            "collective": row.collective,
        }
        for row in rows
    ]
    told = largest(documents, 2.0)
    assert told == "largest error: bubble, predicted -15% of the measured step"


def test_a_pick_says_what_it_cannot_be_told_from() -> None:
    best, near, far = (
        Probed(file=Path(name), predicted_s=None, rounds_s=rounds)
        for name, rounds in (
            ("a.json", (1.0, 1.1)),
            ("b.json", (1.1, 1.12)),
            ("c.json", (2.0, 2.1)),
        )
    )
    assert words([best, near, far]).endswith("distinguishable from it: b.json")
    assert words([best, far]) == "picked a.json"
    assert far.document(best)["distinguishable"]


def test_probes_are_of_the_same_job(tmp_path: Path, layout_file: Any) -> None:
    asked = layout_file(tmp_path / "layout.json")
    with pytest.raises(InvalidFile, match="plan --probe K"):
        probe_files(asked)
    layout_file(tmp_path / "probe-1.json")
    layout_file(tmp_path / "probe-2.json")
    layout_file(tmp_path / "probe-4.json")
    assert [one.name for one in probe_files(asked)] == ["probe-1.json", "probe-2.json"]
    layout_file(tmp_path / "probe-2.json", global_batch=16)
    with pytest.raises(MeshwrightError, match="another job"):
        probe_files(asked)


def test_probes_run_there_and_back_and_the_fastest_is_first(
    tmp_path: Path, layout_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = layout_file(tmp_path / "layout.json")
    for number in (1, 2):
        layout_file(tmp_path / f"probe-{number}.json")
    times = {"probe-1.json": iter((3.0, 4.0)), "probe-2.json": iter((2.0, 1.0))}
    order: list[str] = []

    class Measured:
        def __init__(self, options: RunOptions) -> None:
            assert options.checkpoint_dir is None
            self.name = options.layout.name
            self.prediction = Prediction(estimate=None)

        def execute(self) -> dict[str, Any]:
            order.append(self.name)
            return {"step_time_s": {"median": next(times[self.name])}}

    monkeypatch.setattr(probing, "prepare", Measured)
    kept = replace(run_options(asked), checkpoint_dir=Path("state"))
    first, second = probing.probed(kept, order.append)
    assert [name for name in order if name in times] == [
        *times,
        *reversed(list(times)),
    ]
    assert (first.file.name, first.measured_s) == ("probe-2.json", 1.5)
    assert second.document(first)["slower"] == pytest.approx(3.5 / 1.5 - 1)


@pytest.fixture
def layout_file() -> Any:
    from costmodel.cli import simulate

    def write(path: Path, global_batch: int = 8) -> Path:
        asked = f"--model gpt-tiny --gpus 1 --global-batch {global_batch} --out {path}"
        simulate.main(asked.split(), standalone_mode=False)
        return path

    return write
