"""Laws of unlike devices in one run: everyone waits for the slowest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Cluster, Island
from profiles.models.catalog import model
from profiles.models.job import Job

JOB = Job(model="gpt-6.7b", spec=model("gpt-6.7b").spec, seq_len=2048, global_batch=64)
FAST = cluster("dgx-h100").island
SLOW = cluster("dgx-a100-80gb").island


def joined(*islands: Island, nodes: int = 2) -> Cluster:
    """So many nodes of each, over the slowest of their networks."""
    between = min((one.levels[-1] for one in islands), key=lambda one: one.bytes_per_s)
    return Cluster(
        name="joined",
        islands=tuple(replace(one, nodes=nodes) for one in islands),
        between=between,
        source="a test",
    )


ALL_FAST, BOTH, OTHER_WAY, ALL_SLOW = (
    joined(*islands)
    for islands in ((FAST, FAST), (FAST, SLOW), (SLOW, FAST), (SLOW, SLOW))
)


def priced(choice: Uniform, where: Cluster) -> Estimate:
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    return estimate(JOB, where, layout, on=machine(where))


@st.composite
def choices(draw: st.DrawFn) -> Uniform:
    tp = draw(st.sampled_from((1, 2, 8)))
    pp = draw(st.sampled_from((1, 2, 4)))
    virtual = draw(st.sampled_from((1, 2))) if pp > 1 else 1
    dp = 32 // (tp * pp)
    zero = draw(st.integers(0, 3))
    choice = Uniform(
        tp=tp,
        pp=pp,
        dp=dp,
        schedule="interleaved" if virtual > 1 else "1f1b",
        virtual_stages=virtual,
        zero=zero,
        zero_group=dp if zero else 1,
        recompute=draw(st.sampled_from(("none", "full"))),
    )
    assume(not list(violations(choice, JOB, BOTH)))
    return choice


@given(choices())
def test_a_mixed_run_lies_between_its_kinds(choice: Uniform) -> None:
    fast, slow = priced(choice, ALL_FAST), priced(choice, ALL_SLOW)
    for where in (BOTH, OTHER_WAY):
        found = priced(choice, where)
        assert found.step_time_s >= fast.step_time_s * (1 - 1e-12)
        assert found.step_time_s <= slow.step_time_s * (1 + 1e-12)
        assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)


@given(choices())
def test_two_like_islands_are_one_cluster(choice: Uniform) -> None:
    whole = Cluster(name="whole", islands=(FAST,), source="a test")
    one, two = priced(choice, whole), priced(choice, ALL_FAST)
    assert two.step_time_s == pytest.approx(one.step_time_s, rel=1e-12)
    assert two.peak_memory_bytes == one.peak_memory_bytes
    assert two.peak_flops_per_s == one.peak_flops_per_s
    assert (two.fits, two.device) == (one.fits, one.device)


def test_each_rank_is_held_to_its_own_device() -> None:
    """A stage that fits a large device and one that fits a small one fit together."""
    small = replace(
        SLOW,
        device=replace(
            SLOW.device,
            usable_memory=replace(SLOW.device.usable_memory, value=14.0, unit="GiB"),
        ),
    )
    choice = Uniform(tp=2, pp=4, dp=4, zero=1, zero_group=4, recompute="full")
    large_first, small_first = joined(FAST, small), joined(small, FAST)
    found = priced(choice, large_first)
    first, *_, last = (float(item.total) for item in found.memory)
    assert found.capacities_bytes[0] > first
    assert found.fits is (last <= small.device.capacity_bytes)
    assert priced(choice, small_first).fits is (first <= small.device.capacity_bytes)
    assert found.device == f"{FAST.device.name} + {small.device.name}"


@pytest.mark.parametrize("tp", [1, 8])
def test_no_matter_which_end_has_the_lower_ranks(tp: int) -> None:
    """A tied gradient crosses the network in either direction."""
    choice = Uniform(tp=tp, pp=2, dp=16 // tp, zero=1, zero_group=16 // tp)
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    one, two = layout.stages
    turned = replace(
        layout, stages=(replace(one, mesh=two.mesh), replace(two, mesh=one.mesh))
    )
    where = machine(ALL_FAST)
    there, back = (
        estimate(JOB, ALL_FAST, one, on=where).step_time_s for one in (layout, turned)
    )
    assert back == pytest.approx(there, rel=1e-12)
