"""Rail-only networks (Wang et al., HOTI 2024): what changes rail is forwarded."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.collectives import collective_s, link_rates, send_s
from costmodel.machine.topology import (
    always_crosses,
    changes_rail,
)
from costmodel.simulation.estimator import estimate
from planner.api import solve
from planner.search.branch_and_bound import BranchAndBound
from planner.search.search import Limits
from profiles.errors import InvalidSpec
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Cluster, Level
from tests.support.problems import problem
from tests.support.rows import Obtained

MANY_BYTES = 1e12


def railed(name: str, *, rails: bool = True) -> Cluster:
    found = cluster(name)
    *inner, outer = found.island.levels
    levels = (*inner, replace(outer, rails=rails))
    return replace(found, islands=(replace(found.island, levels=levels),))


def exchange_s(where: Cluster, ranks: int) -> float:
    """An all-to-all of many bytes over whole domains, at datasheet rates."""
    island = where.island
    found = link_rates(island)
    rates = replace(
        found,
        inner=replace(found.inner, half_bytes=0.0, exchange_fraction=1.0),
        outer=replace(found.outer, half_bytes=0.0, exchange_fraction=1.0),
    )
    near = island.domain
    taken = collective_s(
        "all_to_all",
        MANY_BYTES,
        ranks=ranks,
        ranks_per_node=near,
        rates=rates,
        alone=True,
    )
    return float(taken)


@pytest.mark.row("A5", "all-to-all on rails is slower by", expected="8.2 to 11.2 %")
def test_an_all_to_all_is_a_ninth_slower_where_nvlink_is_nine_times_a_nic(
    obtained: Obtained,
) -> None:
    """Abstract, v5: 8.2 to 11.2 % more for mixtures of experts. NICs of 50 GB/s beside
    450 GB/s are 1/9 at most, of which 7/8 go to other rails of a node of eight."""
    with_spine = exchange_s(railed("dgx-h100", rails=False), 32_768)
    on_rails = exchange_s(railed("dgx-h100"), 32_768)
    assert on_rails / with_spine - 1 == pytest.approx(7 / 8 * 50 / 450, rel=0.02)
    obtained(f"{on_rails / with_spine - 1:.1%}")
    assert 0.082 <= on_rails / with_spine - 1 <= 0.112


def test_a_send_to_another_rail_crosses_the_domain_first() -> None:
    rates = link_rates(railed("dgx-h100").island)
    near, far, forwarded = (
        float(send_s(1e9, same_node=same, rates=rates, changes_rail=changes))
        for same, changes in ((True, False), (False, False), (False, True))
    )
    assert forwarded == pytest.approx(near + far)


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 12, 16])
def test_stages_of_whole_domains_stay_on_their_rails(stride: int) -> None:
    island = railed("dgx-a100-80gb").island
    assert bool(changes_rail(np.asarray(stride), island)) == (stride % 8 > 0)
    spine = railed("dgx-a100-80gb", rails=False).island
    assert not changes_rail(np.asarray(stride), spine)


def step_s(choice: Uniform, on: Machine) -> float:
    job = problem("gpt-13b", choice.gpus, global_batch=64).job
    layout = spell_out(choice, job.graph, job.global_batch)
    return estimate(job, on.cluster, layout, on=on).step_time_s


@pytest.mark.row(
    "L5",
    "cost of traffic that keeps its rail, over a full spine",
    expected="none",
    evidence="derived: no number is public",
)
def test_only_what_changes_rail_costs_more() -> None:
    spine = machine(railed("dgx-a100-80gb", rails=False))
    rails = machine(railed("dgx-a100-80gb"))
    whole = Uniform(tp=8, pp=4, sequence_parallel=True)
    half = Uniform(tp=4, pp=8, sequence_parallel=True)
    assert step_s(whole, rails) == step_s(whole, spine)
    assert step_s(half, rails) > step_s(half, spine)


@pytest.mark.row(
    "A5", "bytes of a dense plan to another rail", expected="0", evidence="derived"
)
def test_a_dense_plan_sends_nothing_to_another_rail() -> None:
    posed = problem(
        "gpt-39b", 64, global_batch=256, where=machine(railed("dgx-a100-80gb"))
    )
    best = solve(posed, BranchAndBound(), Limits(runners_up=0)).best
    assert best is not None
    stride = np.asarray(best.choice.tp * best.choice.cp * best.choice.dp)
    island = posed.machine.island
    assert best.choice.pp > 1
    assert always_crosses(stride, island)
    assert not changes_rail(stride, island)
    assert best.choice.ep == best.choice.cp == 1, "groups of rings stay on theirs"


@pytest.mark.parametrize("wrong", [{"ports": 4}, {"devices": 8}])
def test_rails_are_the_outermost_level_and_a_port_each(wrong: dict[str, int]) -> None:
    outer: Level = cluster("dgx-h100").island.levels[-1]
    with pytest.raises(InvalidSpec, match="leave its devices and ports null"):
        replace(outer, rails=True, **wrong)  # type: ignore[arg-type]


def switches(endpoints: int, ports: int) -> int:
    """Of a folded Clos network of full bisection: k endpoints by 1 switch of k ports,
    k²/2 by 3E/k in two tiers, k³/4 by 5E/k in three."""
    if endpoints <= ports:
        return 1
    tiers = 3 if endpoints <= ports**2 // 2 else 5
    assert endpoints <= ports**3 // 4
    return ceil(tiers * endpoints / ports)


@pytest.mark.parametrize(
    ("ports", "with_spine", "on_rails"), [(64, 2560, 1536), (128, 1280, 256)]
)
def test_rails_take_fewer_switches(ports: int, with_spine: int, on_rails: int) -> None:
    """32,768 GPUs in domains of 256: 40 and 80 % fewer, where the paper's networks,
    transceivers included, cost 38 to 77 % less. A network of rails alone is one a rail,
    each with one device of every domain."""
    assert switches(32_768, ports) == with_spine
    assert 256 * switches(32_768 // 256, ports) == on_rails
    assert 0.38 <= 1 - on_rails / with_spine <= 0.80
