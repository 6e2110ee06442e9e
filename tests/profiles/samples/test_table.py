"""`profiles.samples.table`, `profiles.samples.table` and
`profiles.samples.files`."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InvalidFile, InvalidSpec, StaleProfile
from profiles.hardware.catalog import cluster
from profiles.samples.files import content_hash, read_samples, write_samples
from profiles.samples.table import (
    MOST_RUNS,
    CollectiveKey,
    Curve,
    OperatorKey,
    Sample,
    Samples,
    made_monotone,
)

words = st.text(min_size=1, max_size=12)
sizes = st.lists(st.integers(1, 10**9), min_size=1, max_size=4).map(tuple)
operator_keys = st.builds(
    OperatorKey,
    device=words,
    software=words,
    kind=words,
    direction=st.sampled_from(["forward", "backward"]),
    shape=sizes,
    strides=st.just(()) | sizes,
    precision=words,
    backend=words,
    co_running=words,
)
collective_keys = st.builds(
    CollectiveKey,
    fabric=words,
    collective=words,
    ranks=sizes,
    groups_at_once=st.integers(1, 64),
    size_bytes=st.integers(1, 2**40),
)
positive = st.floats(1e-6, 1e6)

MATMUL = OperatorKey(
    device="a100",
    software="torch-2.4",
    kind="matmul",
    direction="forward",
    shape=(4096, 1024, 512),
    precision="bf16",
    backend="cublas",
)
REDUCE = CollectiveKey(
    fabric="nvlink", collective="all_reduce", ranks=(8, 4), size_bytes=2**20
)
SAMPLE = Sample(seconds=1e-3, spread=0.02, repeats=20, provenance="unit test")


def timed(seconds: float) -> Sample:
    return replace(SAMPLE, seconds=seconds)


@given(operator_keys)
def test_operator_keys_read_back(key: OperatorKey) -> None:
    assert OperatorKey.parse(str(key)) == key


@given(collective_keys)
def test_collective_keys_read_back(key: CollectiveKey) -> None:
    assert CollectiveKey.parse(str(key)) == key


def test_text_of_keys_is_for_people() -> None:
    assert str(REDUCE) == "all_reduce|8x4|1|1048576|nvlink"
    assert str(MATMUL) == (
        "matmul|forward|4096x1024x512||bf16|cublas|alone|a100|torch-2.4"
    )


@pytest.mark.parametrize("text", ["", "a|b", "all_reduce|8y4|1|2|x", "a|1|-1|2|x"])
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"parts|whole number"):
        CollectiveKey.parse(text)


def test_keys_refuse_what_cannot_be() -> None:
    with pytest.raises(InvalidSpec, match="sideways"):
        replace(MATMUL, direction="sideways")
    with pytest.raises(InvalidSpec, match="dimensions"):
        replace(MATMUL, shape=(0,))
    with pytest.raises(InvalidSpec, match="ranks"):
        replace(REDUCE, ranks=(0,))
    with pytest.raises(InvalidSpec, match="byte"):
        replace(REDUCE, size_bytes=0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_samples_take_time(seconds: float) -> None:
    with pytest.raises(InvalidSpec, match="seconds"):
        timed(seconds)


points = st.lists(st.tuples(positive, positive), min_size=1, max_size=20)


@given(points)
def test_monotone_tables_are_monotone(pairs: list[tuple[float, float]]) -> None:
    curve = made_monotone(*zip(*pairs, strict=True))
    assert list(curve.work) == sorted({work for work, _ in pairs})
    assert all(np.diff(curve.seconds) >= 0)
    seconds = [second for _, second in pairs]
    assert curve.seconds[0] >= min(seconds) * (1 - 1e-9)
    assert curve.seconds[-1] <= max(seconds) * (1 + 1e-9)


@given(st.lists(positive, min_size=1, max_size=20, unique=True))
def test_what_is_monotone_stays(values: list[float]) -> None:
    rising = sorted(values)
    assert made_monotone(rising, rising).seconds == pytest.approx(rising)


@given(points, st.lists(positive, min_size=2, max_size=10))
def test_interpolation_stays_between_samples(
    pairs: list[tuple[float, float]], asked: list[float]
) -> None:
    curve = made_monotone(*zip(*pairs, strict=True))
    order = sorted(asked)
    read = curve.at(order)
    assert all(np.diff(read) >= 0), "more work never costs less"
    for work, seconds in zip(order, read, strict=True):
        below = [s for w, s in zip(curve.work, curve.seconds, strict=True) if w <= work]
        above = [s for w, s in zip(curve.work, curve.seconds, strict=True) if w >= work]
        assert not below or seconds >= below[-1] * (1 - 1e-9)
        assert not above or seconds <= above[0] * (1 + 1e-9)


def test_equal_work_is_averaged() -> None:
    assert made_monotone([2, 2], [1.0, 4.0]) == Curve(work=(2.0,), seconds=(2.0,))


@pytest.mark.parametrize("seconds", [[], [0.0], [float("nan")]])
def test_curves_need_positive_samples(seconds: list[float]) -> None:
    with pytest.raises(InvalidSpec, match="positive"):
        made_monotone([1.0][: len(seconds)], seconds)


def test_samples_of_another_device_are_stale() -> None:
    table = Samples(operators={MATMUL: SAMPLE})
    table.require(device="a100", software="torch-2.4")
    with pytest.raises(StaleProfile, match=r"of a100 with torch-2\.4, not of h100"):
        table.require(device="h100")
    with pytest.raises(StaleProfile, match=r"torch-2\.5"):
        table.require(device="a100", software="torch-2.5")


def test_newer_samples_win() -> None:
    older = Samples(operators={MATMUL: SAMPLE}, machine={"driver": "1"})
    newer = Samples(operators={MATMUL: timed(2.0)}, machine={"driver": "2"})
    both = older.merged(newer)
    assert both.operators[MATMUL].seconds == 2.0
    assert both.machine == {"driver": "2"}


tables = st.builds(
    Samples,
    operators=st.dictionaries(operator_keys, positive.map(timed), max_size=3),
    collectives=st.dictionaries(collective_keys, positive.map(timed), max_size=3),
    machine=st.dictionaries(words, words, max_size=2),
)


@given(tables)
def test_files_read_back(
    tmp_path_factory: pytest.TempPathFactory, table: Samples
) -> None:
    path = tmp_path_factory.mktemp("samples") / "samples.json"
    digest = write_samples(table, path)
    assert read_samples(path) == table
    assert digest == content_hash(table)
    assert [file.name for file in path.parent.iterdir()] == ["samples.json"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "samples.json"
    write_samples(Samples(operators={MATMUL: SAMPLE}), path)
    return path


def changed(path: Path, **members: object) -> Path:
    document = json.loads(path.read_text())
    document.update(members)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"format": "other"}, "format"),
        ({"version": 2}, "version 2"),
        ({"colour": "blue"}, "colour"),
        ({"machine": {"driver": "9"}}, "content_hash"),
        ({"machine": {"gap seconds": "0.001"}}, "soon < long, got '0.001'"),
        ({"machine": {"gap seconds": "0.002 0.001"}}, "soon < long"),
        ({"machine": {"gap seconds": "0 inf"}}, "soon < long"),
        ({"machine": {"gap seconds": "soon late"}}, "soon < long"),
        ({"operators": [{"key": "x"}]}, "seconds"),
        ({"content_hash": 3}, "content_hash"),
    ],
)
def test_foreign_files_are_refused_by_name(
    file: Path, members: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidFile, match=named):
        read_samples(changed(file, **members))


def test_files_of_an_older_release_are_read(tmp_path: Path) -> None:
    """Written before a member with a default was known: hashed without it."""
    path = tmp_path / "samples.json"
    where = replace(cluster("dgx-a100-80gb"), name="local")
    write_samples(Samples(operators={MATMUL: SAMPLE}, cluster=where), path)
    document = json.loads(path.read_text())
    for island in document["cluster"]["islands"]:
        for level in island["levels"]:
            del level["rails"]
    header = ("format", "version", "content_hash")
    stored = {name: one for name, one in document.items() if name not in header}
    encoded = json.dumps(stored, separators=(",", ":"), ensure_ascii=False).encode()
    document["content_hash"] = f"sha256:{sha256(encoded).hexdigest()}"
    path.write_text(json.dumps(document))
    assert read_samples(path).operators == {MATMUL: SAMPLE}
    document["cluster"]["islands"][0]["nodes"] = 3
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidFile, match="content_hash"):
        read_samples(path)


def test_damaged_files_are_refused(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InvalidFile, match="truncated or invalid JSON"):
        read_samples(file)
    with pytest.raises(InvalidFile, match="cannot be read"):
        read_samples(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InvalidFile, match="not a file of samples"):
        read_samples(tmp_path / "list.json")


def test_runs_are_kept_with_the_samples_the_newest_last(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    once = Samples(operators={MATMUL: SAMPLE})
    plain = write_samples(once, path)
    run = {"step_time_s": {"median": 1.0}, "layout_file": {"gpus": 2}}
    again = once.merged(Samples(runs=(run,)))
    assert write_samples(again, path) != plain
    assert read_samples(path).runs == (run,)
    many = again.merged(Samples(runs=tuple({"n": n} for n in range(MOST_RUNS))))
    assert len(many.runs) == MOST_RUNS
    assert many.runs[-1] == {"n": MOST_RUNS - 1}
