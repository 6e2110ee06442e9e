"""Absurd numbers in files: an answer, or one line that says what is allowed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from math import inf, isfinite, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.__main__ import main
from costmodel.options.pins import Pins
from costmodel.simulation.pricing import from_options
from profiles.commandline.options import JobOptions
from profiles.errors import InvalidQuestion
from profiles.hardware.catalog import cluster
from profiles.limits import LIMITS, require
from profiles.models.catalog import model

ABSURD: tuple[Any, ...] = (
    *(-1, 0, 0.5, 10**9, 10**19, 2**63, 10**300, True, None, "8", [], {}),
    *(1e-300, 1e-18, 1e-9, 1e12, 1e19, 1e300, nan, inf, -inf),
)
ASKED = {
    "cluster": ("--model", "mixtral-8x7b", "--gpus", "16", "--pp", "2", "--cluster"),
    "model": ("--gpus", "8", "--tp", "2", "--recompute", "auto", "--model"),
    "layout": (),
}


@cache
def document(kind: str) -> Any:
    """A file of that kind, in full."""
    if kind == "cluster":
        found: Any = asdict(cluster("gb200-nvl72"))
    elif kind == "model":
        found = {"name": "own", **asdict(model("deepseek-v2-lite").spec)}
    else:
        with TemporaryDirectory() as folder:
            file = Path(folder, "layout.json")
            job = JobOptions(model="mixtral-8x7b", gpus=16, global_batch=64)
            pins = Pins(ep=2, pp=2, zero=2, offload="activations=0.5", imbalance=2.0)
            from_options(job, pins).write(file)
            found = json.loads(file.read_text())
            del found["layout"]["summary"]
    return json.loads(json.dumps(found))


def places(inside: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there are numbers, or none."""
    if isinstance(inside, dict | list):
        items = inside.items() if isinstance(inside, dict) else enumerate(inside)
        for key, value in items:
            yield from places(value, (*path, key))
    elif inside is None or isinstance(inside, int | float):
        yield path


@pytest.mark.parametrize("kind", list(ASKED))
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_absurd_number_is_answered_or_refused(
    kind: str, data: st.DataObject, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = copy.deepcopy(document(kind))
    path = data.draw(st.sampled_from(list(places(changed))))
    here = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = data.draw(st.sampled_from(ABSURD))
    with TemporaryDirectory() as folder:
        file = Path(folder, "file.json")
        file.write_text(json.dumps(changed))
        code = main([*ASKED[kind], str(file), "--json"], prog="simulate")
    said = capsys.readouterr()
    assert code in (0, 1, 2), said.err
    if code == 2:
        assert said.out == ""
        assert len(said.err.strip().splitlines()) == 1
    if code == 0:
        found = json.loads(said.out)
        parts = found["breakdown_s"].values()
        assert min(parts) >= -1e-9 * found["step_time_s"]
        assert sum(parts) == pytest.approx(found["step_time_s"])
        assert isfinite(found["peak_memory_bytes"])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("islands", 0, "levels", 0, "devices"), 10**19, "between 1 and 10,000,000"),
        (("islands", 0, "nodes"), 10**7, "an island's size"),
        (
            ("islands", 0, "devices_per_node"),
            -8,
            "devices_per_node of an island must be",
        ),
        (("islands", 0, "levels", 0, "latency", "value"), 1e19, "between 0 and 10 s"),
        (("islands", 0, "levels", 0, "latency", "value"), -1, "latency of level"),
        (
            ("islands", 0, "levels", 0, "bandwidth", "value"),
            1e-12,
            "bandwidth of level",
        ),
        (("islands", 0, "levels", 0, "bandwidth", "value"), 0, "is 0"),
        (
            ("islands", 0, "device", "usable_memory", "value"),
            0,
            "usable_memory must be",
        ),
        (("islands", 0, "device", "peak", "bf16", "value"), 1e300, "peak.bf16"),
        (("islands", 0, "device", "multiprocessors"), 10**7, "1 and 1,000,000"),
        (("islands", 0, "device", "power", "value"), inf, "truncated or invalid JSON"),
    ],
)
def test_what_was_given_and_what_is_allowed_is_said(
    path: tuple[Any, ...],
    value: Any,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    changed = copy.deepcopy(document("cluster"))
    here = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    file = tmp_path / "file.json"
    file.write_text(json.dumps(changed))
    assert main([*ASKED["cluster"], str(file)], prog="simulate") == 2
    heard = capsys.readouterr()
    assert heard.out == ""
    assert said in heard.err
    assert str(file) in heard.err


@pytest.mark.parametrize("kind", list(LIMITS))
def test_every_limit_has_two_ends(kind: str) -> None:
    limit = LIMITS[kind]
    for value in (limit.least, limit.most):
        require(kind, value, "it")
    for value in (-1, nan, inf, limit.most * 1.001, 10**400):
        with pytest.raises(InvalidQuestion, match="it must be "):
            require(kind, value, "it")
