"""The operators of a recommended layout: its own sharding is one of the choices."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from subprocess import CompletedProcess

import pytest

from costmodel.layout.sharding_spec import read_shardings
from costmodel.layout.strategy import Uniform
from planner.sharding.choice_graph import Status
from planner.sharding.report import (
    LayoutShardings,
    headline,
    layout_block,
    layout_shardings,
    shardings_document,
)
from profiles.errors import Unsupported
from tests.support.problems import problem

Run = Callable[..., CompletedProcess[str]]
TP4 = Uniform(tp=4, micro_batch=2, sequence_parallel=True)


def sharded(choice: Uniform, name: str = "gpt-1.3b", gpus: int = 4) -> LayoutShardings:
    return layout_shardings(problem(name, gpus, global_batch=16), choice)


@pytest.mark.parametrize(
    "choice",
    [
        TP4,
        replace(TP4, sequence_parallel=False),
        Uniform(dp=2, tp=2, micro_batch=1, zero=0),
        Uniform(dp=4, micro_batch=2, zero=3, zero_group=4),
        Uniform(pp=4, micro_batch=2),
    ],
    ids=str,
)
def test_no_layout_shards_its_operators_better(choice: Uniform) -> None:
    found = sharded(choice)
    assert found.best.status is Status.OPTIMAL
    assert found.own_s is not None
    assert found.own_bytes is not None
    assert found.best.value <= found.own_s * (1 + 1e-9)
    assert found.best.peak_bytes <= found.own_bytes * (1 + 1e-6)


def test_megatrons_own_sharding_is_the_best_in_its_memory() -> None:
    found = sharded(replace(TP4, micro_batch=1), "gpt-13b")
    assert found.best.value == pytest.approx(found.own_s)
    assert found.best.loops["mlp_up"] == ("ffn",)


def test_context_parallelism_has_no_own_sharding_in_loops() -> None:
    found = sharded(Uniform(tp=2, cp=2, micro_batch=1))
    assert [axis.name for axis in found.problem.axes] == ["cp", "tp"]
    assert found.own_s is None
    assert "own sharding" not in headline(found)


def test_a_mesh_of_three_axes_is_one_replica() -> None:
    choice = Uniform(tp=2, cp=2, dp=2, micro_batch=1)
    asked = layout_block(problem("gpt-1.3b", 8, global_batch=16), choice)
    assert [axis.name for axis in asked.axes] == ["cp", "tp"]
    assert asked.sequences == 1


def test_zero_takes_states_off_a_rank() -> None:
    whole = layout_block(problem("gpt-1.3b", 4), Uniform(dp=4, zero=0))
    shards = layout_block(problem("gpt-1.3b", 4), Uniform(dp=4, zero=1, zero_group=4))
    assert (whole.state_bytes, shards.state_bytes) == (18.0, 2 + 4 + 12 / 4)


def test_routed_experts_are_refused() -> None:
    with pytest.raises(Unsupported, match="--ep and --etp"):
        sharded(Uniform(), "mixtral-8x7b")


def test_the_document_reads_back() -> None:
    document = shardings_document(sharded(TP4))
    modules = json.loads(json.dumps(document["modules"]))
    assert len(read_shardings(modules, what="document")) == len(modules)
    assert document["mesh"] == {"tp": 4}
    assert document["lower_s"] == document["micro_batch_s"]


def test_the_command_shows_them(run: Run) -> None:
    asked = ("plan", "--model", "gpt-tiny", "--gpus", "2", "--cluster", "cpu")
    done = run(*asked, "--shardings")
    assert done.returncode == 0, done.stderr
    assert "by integer program (optimal)" in done.stdout
    assert "mlp_down" in done.stdout
    document = json.loads(run(*asked, "--shardings", "--json").stdout)
    assert document["shardings"]["status"] == "optimal"
    assert "shardings" not in json.loads(run(*asked, "--json").stdout)


def test_nobody_loads_a_solver_before_it_is_asked_for(run: Run) -> None:
    modules = "planner.cli, planner.sharding, planner.api, planner.search"
    done = run("python", "-c", f"import sys, {modules}; print('pulp' in sys.modules)")
    assert done.stdout.split() == ["False"]
