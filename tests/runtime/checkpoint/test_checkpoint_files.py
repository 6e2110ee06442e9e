"""Checkpoints on disk: whole or not at all, the right ones, undamaged, and harmless."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from profiles.errors import Contradiction, InvalidFile, MeshwrightError, Unsupported
from runtime.checkpoint.checkpoint import load, save
from runtime.checkpoint.directory import begin, latest, require_fresh, resumable
from runtime.checkpoint.manifest import digests, read_meta, sizes, write_manifest
from runtime.optim.optimizer import Optimizer, Settings
from tests.runtime.checkpoint_cases import META, built, restored, stored


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "step-abc").mkdir()
    part = built("plain")
    for step in (3, 20, 100, 1_000_000):
        stored(tmp_path, part, step=step)
    kept = sorted(one.name for one in tmp_path.iterdir())
    assert kept == ["notes.txt", "step-000100", "step-1000000", "step-abc"]
    assert read_meta(tmp_path / "step-000100")["job"] == META["job"]


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    whole = stored(tmp_path)
    begin(tmp_path, 9)  # the run died while it wrote
    unfinished = tmp_path / "step-000007"
    shutil.copytree(whole, unfinished)
    (unfinished / "meta.json").unlink()
    assert latest(tmp_path) == whole
    stored(tmp_path, step=9)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("folder", [".", "gone"])
def test_nothing_to_resume_from_is_said(tmp_path: Path, folder: str) -> None:
    assert latest(tmp_path / folder) is None
    with pytest.raises(InvalidFile, match="no checkpoint to resume from"):
        restored(tmp_path / folder)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"model": "large", "seq_len": 8}, 'job.model was "small", here it is "large"'),
        ({"model": "small"}, "job.seq_len was 8, here it is null"),
        ({"model": {"hidden": 3}, "seq_len": 8}, "job.model was"),
    ],
)
def test_a_checkpoint_of_another_job_is_refused_by_field(
    tmp_path: Path, job: dict[str, Any], said: str
) -> None:
    stored(tmp_path)
    part = built("plain")
    with pytest.raises(Contradiction, match=said):
        load(tmp_path, parts=part.modules, optimizer=part.optimizer, meta={"job": job})
    with pytest.raises(Contradiction, match=said):
        resumable(tmp_path, {"job": job})
    assert resumable(tmp_path, META).step == 1


def test_a_run_that_begins_does_not_write_over_another(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new/folder", "empty"):
        require_fresh(tmp_path / name)
    assert [one.name for one in tmp_path.rglob("*")] == ["empty"], "nothing is made yet"
    stored(tmp_path)
    with pytest.raises(Contradiction, match="holds step-000001 of another run"):
        require_fresh(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidFile, match="cannot be made"):
        require_fresh(tmp_path / "file")
    with pytest.raises(InvalidFile, match="cannot be made"):
        require_fresh(tmp_path / "file" / "folder")


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    part = built("plain")
    part.optimizer = Optimizer(part.named(), Settings(name="sgd"))
    with pytest.raises(Contradiction, match="trained with AdamW, this run uses SGD"):
        restored(tmp_path, part)


def test_a_parameter_of_another_shape_or_name_is_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    wider = nn.ModuleDict({"table": nn.Embedding(11, 6)})
    with pytest.raises(Contradiction, match=r"table.weight has shape \(10, 6\) in it"):
        load(tmp_path, parts=[wider], optimizer=None, meta=META)
    other = nn.ModuleDict({"stable": nn.Embedding(10, 6)})
    with pytest.raises(Contradiction, match=r"has no stable.weight"):
        load(tmp_path, parts=[other], optimizer=None, meta=META)


def test_state_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> str:
            return "odd"

    with pytest.raises(Unsupported, match="_extra_state"):
        save(tmp_path, step=1, parts=[Odd(2, 2)], optimizer=None, meta=META)


class Trap:
    """Pickles to a call that leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


Damage = Callable[[Path], object]


def described_as(path: Path, description: object) -> None:
    """By somebody who knows of its checksum."""
    (path / ".metadata").write_bytes(pickle.dumps(description))
    meta = read_meta(path)
    meta["files"].update(digests(path, [".metadata"]))
    meta["sizes"].update(sizes(path, [".metadata"]))
    write_manifest(path, meta)


def moved(path: Path) -> None:
    """Two tensors of one shape change places in the description, which stays sound."""
    with (path / ".metadata").open("rb") as file:
        description = pickle.load(file)
    places = {one.fqn: one for one in description.storage_data}
    one, other = (places[f"model.layers.{number}.up.weight"] for number in (0, 1))
    there = description.storage_data
    there[one], there[other] = there[other], there[one]
    (path / ".metadata").write_bytes(pickle.dumps(description))


def flipped(file: Path, place: int | None = None) -> None:
    """One bit of *file*, in its middle or at *place*."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    file.write_bytes(content)


def damages() -> Iterator[tuple[str, Damage, str]]:
    """(name, what is done to a checkpoint, what is said)."""

    def cut(name: str, keep: float) -> Damage:
        def cutting(path: Path) -> None:
            file = path / name
            file.write_bytes(file.read_bytes()[: int(file.stat().st_size * keep)])

        return cutting

    def meta(**changed: Any) -> Damage:
        def changing(path: Path) -> None:
            write_manifest(path, {**read_meta(path), **changed})

        return changing

    data = "__0_0.distcp"

    yield "one bit", lambda path: flipped(path / data), "not as it was written"
    yield "tensors that changed places", moved, ".metadata is not as it was written"
    yield "cut tensors", cut(data, 0.5), "damaged"
    yield "no tensors", lambda path: (path / data).unlink(), f"{data} is not in it"
    yield "empty tensors", cut(data, 0), "damaged"
    yield "cut description", cut(".metadata", 0.7), "not as it was written"
    yield "no description", lambda path: (path / ".metadata").unlink(), "is not in it"
    yield "cut meta", cut("meta.json", 0.5), "truncated or invalid JSON"
    yield "foreign meta", meta(format="other"), "not a checkpoint of meshwright"
    yield "later version", meta(version=3), "version 3"
    yield "odd list of files", meta(files=["a"]), r"damaged: files in its .* is \['a'\]"
    yield "odd rate", meta(lr="fast"), "damaged: lr in its meta.json is fast"


@pytest.mark.parametrize(
    ("damage", "said"), [pytest.param(*rest, id=name) for name, *rest in damages()]
)
def test_a_damaged_checkpoint_is_refused(
    tmp_path: Path, damage: Damage, said: str
) -> None:
    damage(stored(tmp_path))
    with pytest.raises(MeshwrightError, match=said) as caught:
        restored(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "__0_0.distcp").unlink(), "__0_0.distcp is not in it"),
        (lambda path: (path / ".metadata").unlink(), ".metadata is not in it"),
        (
            lambda path: os.truncate(path / "__0_0.distcp", 100),
            "__0_0.distcp is not as it was written",
        ),
    ],
)
def test_half_a_checkpoint_is_told_before_it_is_read_and_passed_over(
    tmp_path: Path, damage: Damage, said: str
) -> None:
    path = stored(tmp_path, built("plain"), step=2)
    damage(path)
    here = META
    with pytest.raises(InvalidFile, match=f"{said}; restore it from a copy"):
        resumable(tmp_path, here)
    stored(tmp_path, built("plain"), step=1)
    found = resumable(tmp_path, here)
    assert (found.step, found.damaged) == (1, ("step-000002",))
    (line,) = found.passed_over
    assert said in line
    assert line.endswith("; step-000001 is used instead")


def test_missing_optimizer_state_is_damage(tmp_path: Path) -> None:
    path = stored(tmp_path)
    with (path / ".metadata").open("rb") as file:
        description = pickle.load(file)
    description.state_dict_metadata.pop("optimizer.layers.1.up.weight.exp_avg_sq")
    described_as(path, description)
    with pytest.raises(InvalidFile, match=r"layers.1.up.weight has no exp_avg_sq"):
        restored(tmp_path)


def first_version(path: Path) -> None:
    """As checkpoints were written before: CRC-32, some of all files but the
    description, and no chain."""
    meta = read_meta(path)
    for name in ("content", "parent", "layout"):
        meta.pop(name, None)
    del meta["files"][".metadata"], meta["sizes"][".metadata"]
    meta |= {"version": 1, "files": digests(path, meta["files"], version=1)}
    (path / "meta.json").write_text(json.dumps(meta))


def test_the_first_version_is_read_and_its_sums_are_looked_at(tmp_path: Path) -> None:
    path = stored(tmp_path)
    first_version(path)
    assert len(next(iter(read_meta(path)["files"].values()))) == 8
    restored(tmp_path)
    os.truncate(path / ".metadata", 100)
    with pytest.raises(InvalidFile, match="cut or changed"):
        restored(tmp_path)
    path = stored(tmp_path)
    first_version(path)
    flipped(path / "__0_0.distcp")
    with pytest.raises(InvalidFile, match=r"__0_0.distcp is not as it was written"):
        restored(tmp_path)


def test_nothing_in_a_checkpoint_can_run(tmp_path: Path) -> None:
    path = stored(tmp_path)
    sprung = tmp_path / "sprung"
    described_as(path, Trap(sprung))
    with pytest.raises(InvalidFile, match="describes no tensor"):
        restored(tmp_path)
    assert not sprung.exists()


@pytest.mark.parametrize(
    "description",
    [
        None,
        Metadata(state_dict_metadata={}),
        Metadata(state_dict_metadata={}, storage_data={"a": BytesStorageMetadata()}),
        Metadata(state_dict_metadata=None, storage_data={}),  # type: ignore[arg-type]
    ],
)
def test_a_description_of_nothing_is_damage(tmp_path: Path, description: Any) -> None:
    path = stored(tmp_path)
    described_as(path, description)
    with pytest.raises(InvalidFile, match="describes no tensors"):
        restored(tmp_path)


def test_no_tensor_can_run_either(tmp_path: Path) -> None:
    path = stored(tmp_path)
    sprung = tmp_path / "sprung"
    trap = path / "trap"
    torch.save(Trap(sprung), trap)
    with (path / ".metadata").open("rb") as file:
        description = pickle.load(file)
    for place in description.storage_data.values():
        place.relative_path, place.offset, place.length = "trap", 0, trap.stat().st_size
    described_as(path, description)
    with pytest.raises(InvalidFile, match="damaged"):
        restored(tmp_path)
    assert not sprung.exists()


def test_files_outside_of_a_checkpoint_are_not_read(tmp_path: Path) -> None:
    path = stored(tmp_path)
    shutil.copy(path / "__0_0.distcp", tmp_path / "outside")
    with (path / ".metadata").open("rb") as file:
        description = pickle.load(file)
    for place in description.storage_data.values():
        place.relative_path = "../outside"
    described_as(path, description)
    with pytest.raises(InvalidFile, match="is not in it"):
        restored(tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stored(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", full)
    part = built("plain")
    with pytest.raises(InvalidFile, match="cannot be written to ") as caught:
        save(tmp_path, step=2, parts=part.modules, optimizer=part.optimizer, meta=META)
    assert "No space left" in str(caught.value)
    assert str(caught.value).endswith(" free")
    assert [one.name for one in tmp_path.iterdir()] == [whole.name]
