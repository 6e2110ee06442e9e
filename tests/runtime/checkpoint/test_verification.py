"""`runtime.checkpoint.verification`: a changed byte is found, wherever it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.layout_files import write_layout
from profiles.errors import InvalidFile
from runtime.checkpoint.checkpoint import save
from runtime.checkpoint.directory import Retention
from runtime.checkpoint.manifest import layout_hash, read_meta
from runtime.checkpoint.saver import Saver
from runtime.checkpoint.verification import verified
from runtime.cli import execute
from tests.runtime.checkpoint_cases import META, built, stored
from tests.support.small_jobs import job

STEPS = (1, 2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of one run."""
    folder = tmp_path_factory.mktemp("states")
    saver = Saver(folder=folder, keep=Retention(newest=9), say=print)
    part = built("plain")
    for step in STEPS:
        part.step(step)
        saver.save(step=step, parts=part.modules, optimizer=part.optimizer, meta=META)
    assert saver.failure is None
    return folder


def test_what_is_as_it_was_written_passes(folder: Path) -> None:
    first, *others = verified(folder)
    assert (first.parent, first.chained, first.faults) == (None, None, ())
    assert [(one.chained, one.faults) for one in others] == [(True, ())] * 2
    assert [one.parent for one in others] == [
        {"step": one.step, "content": one.content} for one in (first, others[0])
    ]


@pytest.mark.row(
    "A4",
    "one byte changed in any file of a checkpoint",
    expected="named",
    evidence="derived: the paper has none",
)
@given(st.data())
def test_any_byte_that_changes_is_found_and_its_file_named(
    folder: Path, data: st.DataObject
) -> None:
    files = [one for one in sorted(folder.rglob("*")) if one.is_file()]
    file = data.draw(st.sampled_from(files))
    content = file.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    other = data.draw(st.integers(1, 255))
    changed = bytearray(content)
    changed[place] ^= other
    file.write_bytes(changed)
    try:
        faults = [one for verdict in verified(folder) for one in verdict.faults]
    finally:
        file.write_bytes(content)
    assert any(file.name in one and file.parent.name in one for one in faults)
    assert not any(verdict.faults for verdict in verified(folder))


def test_a_checkpoint_of_another_run_breaks_the_chain(
    folder: Path, tmp_path: Path
) -> None:
    stored(tmp_path, step=2)
    (folder / "step-000003").rename(tmp_path / "step-000003")
    try:
        _, last = verified(tmp_path)
    finally:
        (tmp_path / "step-000003").rename(folder / "step-000003")
    (fault,) = last.faults
    assert last.chained is False
    assert "comes from another step 2 than the one that is there" in fault


def test_a_parent_that_was_let_go_is_no_fault(tmp_path: Path) -> None:
    saver = Saver(folder=tmp_path, keep=Retention(newest=1), say=print)
    part = built("plain")
    for step in STEPS:
        saver.save(step=step, parts=part.modules, optimizer=None, meta=META)
    (one,) = verified(tmp_path)
    assert (one.chained, one.faults) == (None, ())
    assert one.parent is not None
    assert one.parent["step"] == 2


def test_the_command_says_what_is_damaged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute.run(["--verify", str(folder)]) == 0
    assert "as written" in capsys.readouterr().out
    file = folder / "step-000002" / "meta.json"
    content = file.read_text()
    file.write_text(content.replace("small", "large"))
    try:
        assert execute.run(["--verify", str(folder), "--json"]) == 1
        plain = execute.run(["--verify", str(folder)])
    finally:
        file.write_text(content)
    assert plain == 1
    said = capsys.readouterr()
    document, _ = json.JSONDecoder().raw_decode(said.out)
    assert document["sound"] is False
    names = [one["name"] for one in document["checkpoints"] if one["faults"]]
    assert names == ["step-000002"]
    assert "meta.json is not as it was written" in said.err
    assert "DAMAGED" in said.out


def test_a_wrong_question_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidFile, match="holds no checkpoint to verify"):
        verified(tmp_path)
    assert execute.run(["--verify", str(tmp_path / "gone")]) == 2
    assert execute.run(["layout.json", "--verify", str(tmp_path)]) == 2
    assert "layout.json cannot be read" in capsys.readouterr().err
    assert execute.run([]) == 2
    assert "LAYOUT.json is missing" in capsys.readouterr().err


def test_the_layout_is_verified_with_its_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, asked = tmp_path / "layout.json", job()
    layout = spell_out(Uniform(), asked.graph, asked.global_batch)
    write_layout(file, asked, "local", layout)
    part = built("plain")
    meta = {**META, "layout": layout_hash(json.loads(file.read_text()))}
    states = tmp_path / "states"
    save(states, step=1, parts=part.modules, optimizer=None, meta=meta)
    assert {
        len(one) for one in read_meta(states / "step-000001")["files"].values()
    } == {64}
    assert execute.run([str(file), "--verify", str(states)]) == 0
    changed = file.read_text().replace('"seq_len": 16', '"seq_len": 17')
    assert changed != file.read_text()
    file.write_text(changed)
    assert execute.run([str(file), "--verify", str(states)]) == 1
    assert "step-000001 was trained with another layout" in capsys.readouterr().err
