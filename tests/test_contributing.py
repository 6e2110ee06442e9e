"""docs/contributing.md: its files are there, and its records work where it says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import costmodel
import planner
import profiles
from costmodel.machine import framework
from costmodel.support import framework_features
from profiles.hardware import catalog
from profiles.hardware.catalog import device

RECORD = re.compile(r"^ *```json\n(.*?)^ *```$", re.M | re.S)
NAMED = re.compile(r"`((?:[\w-]+/)+[\w.-]*)`")
CACHED = (
    *(catalog._devices, catalog._device),
    *(framework._catalogue, framework.frameworks),
    *(framework_features._table, framework_features.capabilities),
)


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs/contributing.md").read_text(encoding="utf-8")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Catalogues are read anew, and again after the test."""
    for one in CACHED:
        one.cache_clear()
    yield
    for one in CACHED:
        one.cache_clear()


def records(page: str) -> list[dict[str, Any]]:
    return [json.loads(dedent(text)) for text in RECORD.findall(page)]


def test_every_file_that_the_page_names_is_there(page: str, root: Path) -> None:
    named = set(NAMED.findall(page))
    assert len(named) > 40
    assert [name for name in sorted(named) if not (root / name).exists()] == []


def test_every_name_in_code_that_the_page_gives_is_there(page: str, root: Path) -> None:
    names = (
        *("READERS", "MIXTURES", "FAMILIES", "SCHEDULES", "OBJECTIVES", "Objective"),
        *("_QUANTITIES", "value_of", "spell_out", "Uniform", "Mesh", "DecoderSpec"),
        *("AbstractSearch", "Solution", "Run", "TARGETS", "Framework"),
    )
    packages = ("profiles", "costmodel", "planner")
    files = [file for name in packages for file in (root / name).rglob("*.py")]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    for name in names:
        assert name in page
        assert re.search(rf"^\s*(class |def )?{name}\b", code, re.M), name


def test_a_gpu_is_one_file(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    record = records(page)[0]
    shutil.copytree(catalog.DATA, tmp_path / "data")
    file = tmp_path / "data/devices/a10-24gb.json"
    file.write_text(json.dumps(record))
    monkeypatch.setattr(catalog, "DATA", tmp_path / "data")
    assert device("a10").name == record["name"]
    where = tmp_path / "ours.json"
    figure = {"unit": "GB/s", "source": "made up for a test"}
    level = {"latency": {**figure, "value": 5, "unit": "us"}, "kind": "pcie"}
    levels = [
        {**level, "name": "node", "devices": 8, "bandwidth": {**figure, "value": 25}},
        {**level, "name": "net", "devices": None, "bandwidth": {**figure, "value": 3}},
    ]
    island = {"device": "a10", "devices_per_node": 8, "nodes": 1, "levels": levels}
    where.write_text(json.dumps({"name": "ours", "islands": [island]}))
    cluster = profiles.load_cluster(where)
    job = profiles.load_model("gpt-1.3b").job(global_batch=64)
    plan = planner.plan(job, cluster, gpus=8, runners_up=0)
    assert plan.estimate is not None
    assert plan.estimate.fits
    assert plan.estimate.device == record["name"]
    assert 0 < plan.estimate.mfu < 1


def test_a_framework_is_another_but(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    _, software, able = records(page)
    for module, place, record in (
        (framework, "CATALOGUE", software),
        (framework_features, "TABLE", able),
    ):
        document = json.loads(getattr(module, place).read_bytes())
        document["frameworks"].append(record)
        file = tmp_path / place
        file.write_text(json.dumps(document))
        monkeypatch.setattr(module, place, file)
    asked = {"gpus": 8, "pp": 4, "virtual_stages": 2, "framework": software["name"]}
    found = costmodel.simulate("gpt-1.3b", **asked)
    assert found.step_time_s > 0
    lacks = "our-megatron has no interleaved schedule; it has 1f1b"
    assert lacks in found.warnings
    base = costmodel.simulate("gpt-1.3b", **{**asked, "framework": able["base"]})
    assert not any("schedule" in line for line in base.warnings)
    plain = costmodel.simulate("gpt-1.3b", gpus=8, pp=4, framework=software["name"])
    assert not any("our-megatron" in line for line in plain.warnings)
