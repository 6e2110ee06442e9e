"""From one layout to another: legal all the way, and the changes add up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.layout.layout import Layout, Ranges
from costmodel.layout.offload import ZeroPlus
from costmodel.layout.strategy import Uniform, spell_out, uniform_of
from costmodel.support.legality import violations
from planner.analysis.diff import difference, way
from planner.problem.problem import Problem
from planner.problem.space import Space
from tests.support.problems import problem, small_problems

Ask = Callable[..., tuple[int, str, str]]
CHOICE = Uniform(dp=2, zero_group=2)
FLAT = Uniform(dp=64, zero=3, zero_group=64, recompute="full", micro_batch=2)
LESS = replace(FLAT, zero_plus=ZeroPlus(quantized_weights=True, hpz_partition_size=8))
DEEP = Uniform(
    tp=4,
    pp=4,
    dp=4,
    zero_group=2,
    schedule="interleaved",
    virtual_stages=5,
    sequence_parallel=True,
)


def choices(posed: Problem) -> list[Any]:
    space = Space(problem=posed)
    columns = space.leaves(space.branches)
    return [space.choice(columns, row) for row in range(len(columns))]


@settings(max_examples=25)
@given(st.data())
def test_the_way_between_any_two_layouts_is_legal(data: st.DataObject) -> None:
    posed = data.draw(small_problems())
    all_of_them = choices(posed)
    assume(len(all_of_them) > 1)
    a, b = (data.draw(st.sampled_from(all_of_them)) for _ in "ab")
    job, on = posed.job, posed.machine
    steps = list(way(a, b, job, on))
    for _, choice in steps:
        assert not list(violations(choice, job, on.cluster))
    named = [name for names, _ in steps for name in names]
    assert len(named) == len(set(named))
    assert (steps[-1][1] if steps else a) == b


@settings(max_examples=25)
@given(st.data())
def test_a_spelled_out_layout_is_read_back(data: st.DataObject) -> None:
    posed = data.draw(small_problems())
    choice = data.draw(st.sampled_from(choices(posed)))
    graph = posed.job.graph
    layout = spell_out(choice, graph, posed.job.global_batch)
    found = uniform_of(layout, graph)
    assert found is not None
    assert spell_out(found, graph, posed.job.global_batch) == layout


def test_the_changes_add_up() -> None:
    posed = problem("gpt-13b", 64, global_batch=256)
    job, on = posed.job, posed.machine
    for a, b in ((FLAT, DEEP), (DEEP, FLAT), (FLAT, LESS), (LESS, DEEP)):
        layouts = [spell_out(one, job.graph, job.global_batch) for one in (a, b)]
        found = difference(job, on, *layouts)
        assert found.changes
        more = sum(change.step_time_s for change in found.changes)
        assert more == pytest.approx(found.b.step_time_s - found.a.step_time_s)
        held = sum(change.peak_memory_bytes for change in found.changes)
        whole = found.b.peak_memory_bytes - found.a.peak_memory_bytes
        assert held == pytest.approx(whole)
        for change in found.changes:
            assert sum(change.parts_s.values()) == pytest.approx(change.step_time_s)


def test_layouts_with_unlike_layers_say_what_is_unlike() -> None:
    posed = problem("gpt-mini", 2)
    job, on = posed.job, posed.machine
    whole = spell_out(replace(CHOICE, recompute="full"), job.graph, 8)
    plain = spell_out(CHOICE, job.graph, 8)
    ours, theirs = plain.stages[0], whole.stages[0]
    plans = (*ours.plans[:4], theirs.plans[4], *ours.plans[5:])
    odd = replace(plain, stages=(replace(ours, plans=plans),))
    assert uniform_of(odd, job.graph) is None
    (change,) = difference(job, on, plain, odd).changes
    assert change.dimensions == ("recompute",)
    uneven = replace(FLAT, pp=2, dp=1, zero_group=1, layers_per_stage=(5, 3))
    cut = spell_out(uneven, job.graph, 8)
    even = spell_out(replace(uneven, layers_per_stage=None), job.graph, 8)
    (change,) = difference(job, on, even, cut).changes
    assert change.dimensions == ("layers of each stage",)
    (change,) = difference(job, on, even, with_unlike_meshes(even)).changes
    assert change.dimensions == ("GPUs", "mesh of each stage")


def with_unlike_meshes(layout: Layout) -> Layout:
    """The second of two stages on two ranks."""
    first, last = layout.stages
    wide = replace(last, mesh=replace(last.mesh, ranks=Ranges(((1, 2),)), tp=2))
    return replace(layout, stages=(first, wide))


@pytest.mark.slow
def test_plans_differ_by_name(asking: Ask, tmp_path: Path) -> None:
    """The page's example, whose plans recompute by stage and shard on their own."""
    a, b = (str(tmp_path / f"{name}.json") for name in "ab")
    asked = ("--model", "gpt-13b", "--gpus", "64", "--top", "0")
    assert asking(*asked, "--out", a)[0] == 0
    assert asking(*asked, "--tp", "4", "--pp", "4", "--out", b)[0] == 0
    found = json.loads(asking("--diff", a, b, "--json")[1])
    named = [name for change in found["changes"] for name in change["dimensions"]]
    assert {"tensor parallelism", "pipeline parallelism", "micro-batch"} <= set(named)
    assert len(found["changes"]) > 3
    total = sum(change["step_time_s"] for change in found["changes"])
    assert found["step_time_s"] == pytest.approx(total)


def write(asking: Ask, file: Path, *more: str) -> str:
    assert asking("--model", "gpt-mini", *more, "--out", str(file))[0] == 0
    return str(file)


def test_two_files_are_compared(asking: Ask, tmp_path: Path) -> None:
    a = write(asking, tmp_path / "a.json", "--gpus", "4", "--tp", "4")
    b = write(asking, tmp_path / "b.json", "--gpus", "4", "--pp", "2", "--dp", "2")
    code, out, err = asking("--diff", a, b, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    total = sum(change["step_time_s"] for change in found["changes"])
    ends = [found[name]["estimate"]["step_time_s"] for name in "ab"]
    assert found["step_time_s"] == pytest.approx(ends[1] - ends[0])
    assert found["step_time_s"] == pytest.approx(total)
    named = [name for change in found["changes"] for name in change["dimensions"]]
    assert {"tensor parallelism", "pipeline parallelism"} <= set(named)
    table = " ".join(asking("--diff", a, b)[1].split())
    assert "because" in table
    same = json.loads(asking("--diff", a, a, "--json")[1])
    assert (same["changes"], same["step_time_s"]) == ([], 0.0)
    assert "the same layout" in asking("--diff", a, a)[1]


def test_files_are_compared_under_the_software_that_is_asked(
    asking: Ask, tmp_path: Path
) -> None:
    software = ("--overlap", "none", "--bucket-mb", "1")
    a = write(asking, tmp_path / "a.json", "--gpus", "4", "--tp", "4", *software)
    b = write(asking, tmp_path / "b.json", "--gpus", "4", "--dp", "4", *software)
    found = json.loads(asking("--diff", a, b, *software, "--json")[1])
    for name, file in (("a", a), ("b", b)):
        degree = "--tp" if name == "a" else "--dp"
        options = ("--model", "gpt-mini", "--gpus", "4", degree, "4", *software)
        planned = json.loads(asking(*options, "--json")[1])["estimate"]
        assert found[name]["estimate"]["step_time_s"] == planned["step_time_s"], file


def test_more_gpus_are_a_change_too(asking: Ask, tmp_path: Path) -> None:
    a = write(asking, tmp_path / "a.json", "--gpus", "2", "--dp", "2")
    b = write(asking, tmp_path / "b.json", "--gpus", "4", "--dp", "4")
    found = json.loads(asking("--diff", a, b, "--json")[1])
    assert any("GPUs" in change["dimensions"] for change in found["changes"])


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--tp", "2"), "--tp cannot change"),
        (("--model", "gpt-tiny"), "--model cannot change"),
        (("--gpus", "4"), "--gpus cannot change"),
        (("--cluster", "nowhere"), "cluster"),
    ],
)
def test_options_that_the_files_answer(
    asking: Ask, tmp_path: Path, more: tuple[str, ...], reason: str
) -> None:
    a = write(asking, tmp_path / "a.json", "--gpus", "1")
    code, out, err = asking("--diff", a, a, *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_unlike_jobs_and_clusters_are_refused(asking: Ask, tmp_path: Path) -> None:
    a = write(asking, tmp_path / "a.json", "--gpus", "2")
    longer = write(asking, tmp_path / "b.json", "--gpus", "2", "--seq-len", "128")
    h100 = write(asking, tmp_path / "c.json", "--gpus", "2", "--cluster", "dgx-h100")
    for other, reason in ((longer, "seq-len"), (h100, "--cluster")):
        code, out, err = asking("--diff", a, other, "--json")
        assert (code, out) == (2, "")
        assert reason in err
    assert asking("--diff", a, h100, "--cluster", "dgx-h100")[0] == 0
    code, out, err = asking("--diff", a, str(tmp_path / "none.json"))
    assert (code, out) == (2, "")
    assert "cannot be read" in err
