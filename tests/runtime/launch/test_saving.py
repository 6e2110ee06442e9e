"""`execute` and its checkpoints: saved beside training, passed over, and a disk that is
full."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.forkserver import _forkserver, ensure_running
from pathlib import Path

import pytest

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.layout_files import write_layout
from runtime.checkpoint.directory import step_of, whole
from runtime.checkpoint.manifest import layout_hash, read_meta
from runtime.checkpoint.verification import verified
from tests.support.small_jobs import job

Execute = Callable[..., tuple[int, str, str]]
OPTIONS = ["--device", "cpu", "--json", "--checkpoint-dir", "state"]
OPTIONS += ["--checkpoint-every", "2"]


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A layout file of one rank, in the working folder."""
    monkeypatch.chdir(tmp_path)
    asked = job()
    choice = Uniform(precision="fp32", micro_batch=1)
    plan = spell_out(choice, asked.graph, asked.global_batch)
    write_layout(tmp_path / "layout.json", asked, "local", plan)
    return "layout.json"


def steps() -> list[int]:
    return sorted(step_of(one) for one in whole(Path("state")))


@contextmanager
def no_file_larger_than(most_bytes: int) -> Iterator[None]:
    """As on a disk that fills up in the middle of a file, for the workers: the system
    says so itself. They are forked from a server."""
    ensure_running()
    server = _forkserver._forkserver_pid  # type: ignore[attr-defined]
    before = resource.prlimit(server, resource.RLIMIT_FSIZE)
    resource.prlimit(server, resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server, resource.RLIMIT_FSIZE, before)


def test_a_full_disk_does_not_end_a_run(executing: Execute, layout: str) -> None:
    code, out, err = executing(layout, *OPTIONS, "--steps", "4")
    assert code == 0, err
    assert json.loads(out)["unsaved"] is None
    largest = max(one.stat().st_size for one in Path("state").rglob("*.distcp"))
    for more in ([], ["--async-save"]):
        with no_file_larger_than(largest // 2):
            code, out, err = executing(
                layout, *OPTIONS, "--steps", "9", "--resume", *more
            )
        document = json.loads(out)
        assert code == 1
        assert (document["first_step"], document["steps"]) == (4, 5)
        assert "File too large" in document["unsaved"]
        assert "the last state is not on disk" in err
        assert steps() == [2, 4]
        assert not list(Path("state").glob("*.partial"))
    code, out, err = executing(layout, *OPTIONS, "--steps", "9", "--resume")
    assert (code, json.loads(out)["unsaved"]) == (0, None), err
    assert steps() == [8, 9]


def test_a_folder_that_is_closed_meanwhile_costs_a_line(
    executing: Execute, layout: str
) -> None:
    Path("state").write_text("")
    code, _, err = executing(layout, *OPTIONS, "--steps", "4")
    assert code == 2, "known before: said before"
    assert "--checkpoint-dir" in err


def test_saved_beside_training_is_the_same(executing: Execute, layout: str) -> None:
    keep = ["--keep", "1", "--keep-every", "4"]
    code, out, err = executing(layout, *OPTIONS, "--steps", "9", "--async-save", *keep)
    assert code == 0, err
    assert steps() == [4, 8, 9]
    assert not any(one.faults for one in verified(Path("state")))
    chain = [one.parent and one.parent["step"] for one in verified(Path("state"))]
    assert chain == [2, 6, 8]
    known = layout_hash(json.loads(Path(layout).read_text()))
    assert read_meta(Path("state/step-000009"))["layout"] == known
    first = json.loads(out)["losses"]
    code, out, _ = executing(layout, "--device", "cpu", "--steps", "9", "--json")
    assert json.loads(out)["losses"] == first


def test_a_resumed_run_passes_over_what_is_damaged_and_says_so(
    executing: Execute, layout: str
) -> None:
    code, out, _ = executing(layout, *OPTIONS, "--steps", "6")
    assert code == 0
    whole_run = json.loads(out)["losses"]
    assert steps() == [4, 6]
    os.truncate("state/step-000006/__0_0.distcp", 1000)
    code, out, err = executing(layout, *OPTIONS, "--steps", "6", "--resume")
    assert code == 0, err
    said = [line for line in err.splitlines() if "step-000006 is damaged" in line]
    assert len(said) == 1
    assert said[0].endswith("step-000004 is used instead")
    document = json.loads(out)
    assert (document["first_step"], document["losses"]) == (4, whole_run[4:])
    assert not any(one.faults for one in verified(Path("state")))


def test_what_cannot_be_saved_so_is_said_first(
    executing: Execute, layout: str, tmp_path: Path
) -> None:
    for option in (["--async-save"], ["--keep-every", "2"], ["--recovery", "replica"]):
        code, _, err = executing(layout, "--device", "cpu", *option)
        assert code == 2
        assert f"{' '.join(option[:1])}" in err
        assert "needs --checkpoint-dir DIR" in err
    asked = job()
    choice = Uniform(
        precision="bf16", micro_batch=1, offload=Offload(optimizer=True, tier="nvme")
    )
    plan = spell_out(choice, asked.graph, asked.global_batch)
    write_layout(tmp_path / "drive.json", asked, "local", plan)
    code, _, err = executing("drive.json", *OPTIONS, "--async-save")
    assert code == 2
    assert "keeps on a drive" in err


def test_weights_are_written_whole_or_not_at_all(
    executing: Execute, layout: str
) -> None:
    """Also when every step was done before."""
    pytest.importorskip("safetensors", reason="pip install safetensors writes weights")
    assert executing(layout, *OPTIONS, "--steps", "2")[0] == 0
    ended = (*OPTIONS, "--steps", "2", "--resume")
    code, _, err = executing(layout, *ended)
    assert (code, "raise it to go on" in err) == (2, True)
    with no_file_larger_than(20_000):
        code, out, err = executing(layout, *ended, "--save-weights", "model")
    assert code == 1, err
    assert "cannot be written" in json.loads(out)["unsaved"]
    assert sorted(one.name for one in Path().iterdir()) == ["layout.json", "state"]
    code, out, err = executing(layout, *ended, "--save-weights", "model")
    assert (code, json.loads(out)["unsaved"]) == (0, None), err
    assert sorted(one.name for one in Path("model").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    begun = ("--device", "cpu", "--json", "--steps", "1", "--weights", "model")
    code, out, err = executing(layout, *begun)
    assert code == 0, err
    code, _, err = executing(layout, *begun, "--save-weights", "model")
    assert code == 2
    assert "is there already" in err
