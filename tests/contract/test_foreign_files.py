"""Two hundred checkpoints, layouts, profiles and weights that are cut, changed or of
strangers: each is refused by name or recovered, and none runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.profile_files import read_profile
from costmodel.simulation.layout_files import write_layout
from profiles.errors import MeshwrightError
from runtime.checkpoint.checkpoint import restore, save
from runtime.checkpoint.directory import resumable
from runtime.checkpoint.manifest import META as MANIFEST
from runtime.checkpoint.manifest import read_meta, write_manifest
from runtime.checkpoint.verification import verified
from runtime.launch.run import prepare
from tests.runtime.checkpoint_cases import META, built, same
from tests.runtime.run_options import run_options
from tests.support.damage import as_json, changed, damaged
from tests.support.foreign_models import CONFIGS
from tests.support.small_jobs import job

SAMPLES = Path(__file__).parents[2] / "benchmarks/results"
PROFILE = SAMPLES / "2026-11-21-cpu-gpt-mini-samples.json"
FILES = (".metadata", "__0_0.distcp", MANIFEST)
many = settings(max_examples=60, suppress_health_check=list(HealthCheck))
some = settings(max_examples=40, suppress_health_check=list(HealthCheck))


@contextmanager
def refused_in_one_line() -> Iterator[None]:
    """Or taken."""
    refused: list[MeshwrightError] = []
    try:
        yield
    except MeshwrightError as error:
        refused.append(error)
    for one in refused:
        assert one.exit_code in (1, 2)
        assert str(one)
        assert "\n" not in str(one)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Any]]:
    """Checkpoints of two steps, and the states in them."""
    folder, part, states = tmp_path_factory.mktemp("good"), built("plain"), {}
    for step in (1, 2):
        part.step(step)
        parts, optimizer = part.modules, part.optimizer
        save(folder, step=step, parts=parts, optimizer=optimizer, meta=META)
        states[step] = part.whole()
    return folder, states


def read(folder: Path) -> tuple[int, Any]:
    part = built("plain", seed=5)
    found = restore(folder, parts=part.modules, optimizer=part.optimizer, meta=META)
    return found.step, part.whole()


@pytest.mark.slow
@many
@given(data=st.data())
def test_a_damaged_checkpoint_is_recovered_from(
    good: tuple[Path, dict[int, Any]], data: st.DataObject
) -> None:
    """By whatever happens to a disk: the one before is used."""
    folder, states = good
    with TemporaryDirectory() as where:
        copy, trap = Path(shutil.copytree(folder, Path(where, "a"))), Path(where, "run")
        newest = copy / "step-000002"
        for name in data.draw(st.sets(st.sampled_from(FILES), min_size=1, max_size=2)):
            file = newest / name
            if data.draw(st.integers(0, 9)):
                file.write_bytes(data.draw(damaged(file.read_bytes(), trap)))
            else:
                file.unlink()
        before = {one.name: one.read_bytes() for one in newest.iterdir()}
        step, state = read(copy)
        assert same(state, states[step])
        whole = {one.name: one.read_bytes() for one in (folder / newest.name).iterdir()}
        assert step == (2 if before == whole else 1)
        assert resumable(copy, META).step in (1, 2)
        if MANIFEST in before:
            bad = {one.name: one.faults for one in verified(copy) if one.faults}
            assert bool(bad) == (step == 1)
        assert before == {one.name: one.read_bytes() for one in newest.iterdir()}
        assert not trap.exists()


@pytest.mark.slow
@many
@given(data=st.data())
def test_a_strangers_checkpoint_is_refused_by_name(
    good: tuple[Path, dict[int, Any]], data: st.DataObject
) -> None:
    """Whose hashes hold: made by somebody who knows how."""
    folder, _ = good
    with TemporaryDirectory() as where:
        copy, trap = Path(shutil.copytree(folder, Path(where, "a"))), Path(where, "run")
        newest = copy / "step-000002"
        shutil.rmtree(copy / "step-000001")
        manifest = read_meta(newest)
        if data.draw(st.booleans()):
            file = data.draw(st.sampled_from([".metadata", "__0_0.distcp"]))
            content = data.draw(damaged((newest / file).read_bytes(), trap))
            (newest / file).write_bytes(content)
            manifest["sizes"][file] = len(content)
            rehash(newest, manifest, file)
        else:
            manifest = data.draw(changed(manifest))
        if isinstance(manifest.get("step"), int):
            write_manifest(newest, manifest)
        else:
            (newest / MANIFEST).write_bytes(as_json(manifest))
        with refused_in_one_line():
            read(copy)
        with refused_in_one_line():
            verified(copy)
        assert not trap.exists()


def rehash(path: Path, manifest: dict[str, Any], file: str) -> None:
    from runtime.checkpoint.manifest import digests

    manifest["files"] |= digests(path, [file])


@pytest.mark.slow
@some
@given(data=st.data())
def test_a_foreign_layout_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("layouts")
    file, asked = folder / "layout.json", job()
    layout = spell_out(Uniform(precision="fp32", dp=2), asked.graph, 2)
    write_layout(file, asked, "local", layout)
    of_strangers(file, folder / "run", data, lambda: prepare(run_options(file)))


@pytest.mark.slow
@some
@given(data=st.data())
def test_a_foreign_profile_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("profiles")
    file = folder / "samples.json"
    shutil.copy(PROFILE, file)
    of_strangers(file, folder / "run", data, lambda: read_profile([file]))


@pytest.mark.slow
@some
@given(data=st.data())
def test_foreign_weights_are_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    pytest.importorskip("safetensors")
    from runtime.weights.folder import CONFIG, INDEX, WeightsFolder
    from tests.runtime.weights.test_folder import folder_of

    folder = tmp_path_factory.mktemp("weights")
    name = data.draw(st.sampled_from(["gpt2", "llama", "mixtral"]))
    folder_of(name, folder, files=3)
    assert json.loads((folder / CONFIG).read_text()) == CONFIGS[name]
    file = folder / data.draw(st.sampled_from([CONFIG, INDEX, "m-1.safetensors"]))

    def read_all() -> None:
        found = WeightsFolder.read(folder)
        for bond in found.expected.bonds:
            bond.join(found.tensors(bond.theirs))

    of_strangers(file, folder / "run", data, read_all)


def of_strangers(
    file: Path, trap: Path, data: st.DataObject, use: Callable[[], object]
) -> None:
    """Change *file*, as a document or as bytes, and *use* it."""
    content = file.read_bytes()
    if file.suffix == ".json" and data.draw(st.integers(0, 3)):
        file.write_bytes(as_json(data.draw(changed(json.loads(content)))))
    else:
        file.write_bytes(data.draw(damaged(content, trap)))
    with refused_in_one_line():
        use()
    assert not trap.exists()
