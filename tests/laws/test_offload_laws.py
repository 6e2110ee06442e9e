"""Laws of offloading: nothing moved costs nothing, slower hosts are never faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Columns, Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework, with_overlap
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.stages.offload_cost import HOST_LINK_FRACTION
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Cluster, Figure
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.param_count import parameters
from profiles.units import GB
from tests.oracles.bounds import step_time_bound_s

CLUSTER = cluster("dgx-a100-80gb")
SPEC = model("gpt-13b").spec
JOB = Job(model="gpt-13b", spec=SPEC, seq_len=2048, global_batch=64)
NOTHING = Offload()


@st.composite
def choices(draw: st.DrawFn) -> Uniform:
    tp = draw(st.sampled_from((1, 2, 8)))
    virtual = draw(st.sampled_from((1, 1, 2)))
    dp = draw(st.sampled_from((1, 2, 4)))
    choice = Uniform(
        tp=tp,
        pp=draw(st.sampled_from((1, 2, 4))),
        dp=dp,
        micro_batch=draw(st.sampled_from((1, 2))),
        schedule="interleaved" if virtual > 1 else "1f1b",
        virtual_stages=virtual,
        zero=draw(st.integers(0, 3)),
        zero_group=1,
        recompute=draw(st.sampled_from(("none", "selective", "cheap-ops", "full"))),
    )
    choice = replace(choice, zero_group=dp if choice.zero else 1)
    assume(not list(violations(choice, JOB, CLUSTER)))
    return choice


@st.composite
def offloads(draw: st.DrawFn, zero: int) -> Offload:
    return Offload(
        activations=draw(st.sampled_from((0.0, 0.3, 1.0))),
        optimizer=draw(st.booleans()),
        parameters=zero == 3 and draw(st.booleans()),
        tier=draw(st.sampled_from(("cpu", "nvme"))),
    )


@st.composite
def offloading(draw: st.DrawFn) -> Uniform:
    choice = draw(choices())
    return replace(choice, offload=draw(offloads(choice.zero)))


def with_host_link(gb_per_s: float) -> Cluster:
    island = CLUSTER.island
    link = replace(island.device.host_link, value=gb_per_s, unit="GB/s")
    island = replace(island, device=replace(island.device, host_link=link))
    return replace(CLUSTER, islands=(island,))


ON = machine(CLUSTER)


def priced(choice: Uniform, on: Machine = ON) -> Estimate:
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    return estimate(JOB, on.cluster, layout, on=on)


@given(choices())
def test_a_ratio_of_nothing_is_no_offload(choice: Uniform) -> None:
    kept = priced(choice)
    none = priced(replace(choice, offload=Offload(activations=0.0, tier="nvme")))
    assert none.step_time_s == kept.step_time_s
    assert none.peak_memory_bytes == kept.peak_memory_bytes
    assert kept.breakdown_s["offload"] == 0


@given(offloading())
def test_what_is_offloaded_needs_no_more_memory_and_no_less_time(
    choice: Uniform,
) -> None:
    kept, away = priced(replace(choice, offload=NOTHING)), priced(choice)
    moved = replace(choice, offload=choice.offload.of_states)
    # An optimizer's step may be longer or shorter on a host; copies only wait.
    assert away.step_time_s >= priced(moved).step_time_s * (1 - 1e-12)
    states = ("parameters", "gradients", "optimizer", "activations")
    for before, after in zip(kept.memory, away.memory, strict=True):
        for name in states:
            assert getattr(after, name) <= getattr(before, name) * (1 + 1e-12)
    if not choice.offload.optimizer:  # which keeps buffers for what leaves
        assert away.peak_memory_bytes <= kept.peak_memory_bytes * (1 + 1e-12)
    assert sum(away.breakdown_s.values()) == pytest.approx(away.step_time_s)
    assert min(away.breakdown_s.values()) > -1e-9


@given(offloading(), st.sampled_from((1.0, 4.0, 16.0)))
def test_a_slower_host_link_is_never_faster(choice: Uniform, gb_per_s: float) -> None:
    slow, fast = (machine(with_host_link(rate)) for rate in (gb_per_s, 2 * gb_per_s))
    slower, faster = priced(choice, slow), priced(choice, fast)
    assert slower.step_time_s >= faster.step_time_s * (1 - 1e-12)
    assert slower.peak_memory_bytes == faster.peak_memory_bytes


@given(choices(), st.sampled_from((0.1, 0.5)))
def test_more_offloaded_is_never_faster_and_never_larger(
    choice: Uniform, ratio: float
) -> None:
    less, more = (
        priced(replace(choice, offload=Offload(activations=share)))
        for share in (ratio, 2 * ratio)
    )
    assert more.step_time_s >= less.step_time_s * (1 - 1e-12)
    assert more.peak_memory_bytes <= less.peak_memory_bytes * (1 + 1e-12)


@given(offloading())
def test_overlap_never_costs(choice: Uniform) -> None:
    base = load_framework("megatron-core")
    shown = machine(CLUSTER, with_overlap(base, base.overlap.hidden - {"offload"}))
    hidden = priced(choice, machine(CLUSTER, base))
    exposed = priced(choice, shown)
    assert exposed.step_time_s >= hidden.step_time_s * (1 - 1e-12)


@given(offloading())
def test_columns_equal_the_closed_form_with_offload_too(choice: Uniform) -> None:
    prices = price(Columns.of([choice]), JOB, ON)
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    column_s = float(prices.step_time_s[0])
    assert column_s == pytest.approx(step_time_bound_s(JOB, layout, ON), rel=1e-12)
    found = priced(choice)
    assert column_s <= found.step_time_s * (1 + 1e-12)
    column_bytes = float(prices.needed_bytes[0])
    assert column_bytes <= found.peak_needed_bytes * (1 + 1e-12)


def with_drives(read_gb_per_s: float, write_gb_per_s: float) -> Machine:
    """Whose traffic nothing hides."""
    read, write = (
        Figure(value=rate, unit="GB/s", source="a test")
        for rate in (read_gb_per_s, write_gb_per_s)
    )
    island = replace(CLUSTER.island, drive_read=read, drive_write=write)
    base = load_framework("meshwright")
    on = replace(CLUSTER, islands=(island,))
    return machine(on, with_overlap(base, base.overlap.hidden - {"offload"}))


@pytest.mark.parametrize(
    ("zero", "group", "parameters_away"),
    [
        *((0, 1, False), (1, 2, False), (2, 2, False), (3, 2, False), (3, 2, True)),
    ],
)
def test_drives_take_what_a_step_reads_and_writes(
    zero: int, group: int, *, parameters_away: bool
) -> None:
    """States once; gradients that are scattered: written by every micro-batch from
    ZeRO-2 on, read by all but the first one, for their norm and for the update."""
    away = Offload(optimizer=True, parameters=parameters_away, tier="nvme")
    choice = Uniform(dp=2, zero=zero, zero_group=group, micro_batch=4, offload=away)
    m, ranks, rate = choice.micro_batches(JOB.global_batch), choice.dp, 0.02
    slow_s = priced(choice, with_drives(rate, rate)).step_time_s
    saved_s = [
        slow_s - priced(choice, with_drives(*rates)).step_time_s
        for rates in ((2 * rate, rate), (rate, 2 * rate))
    ]
    read, written = (one * 2 * rate * GB / ranks for one in saved_s)
    shard = parameters(JOB.spec).total / (group if zero else 1)
    sent = (0, 1, m, m)[zero]
    shards = {1: 1, 2: 1, 3: 2 * m * parameters_away}.get(zero, 0)  # fetched
    assert written == pytest.approx((sent * 4 + 12) * shard, rel=1e-6)
    reads = (sent + (zero > 0)) * 4 + 12 + shards * 4
    assert read == pytest.approx(reads * shard, rel=1e-6)
    found = priced(choice).away
    assert found is not None
    held = (16 if zero else 12) * shard * ranks
    assert found.node_bytes == pytest.approx(held, rel=1e-6)


def test_copies_hide_until_they_are_longer_than_a_pass() -> None:
    """Yuan et al. (ATC 2024): all is hidden while ratio · bytes / link ≤ a pass."""
    choice = Uniform(zero=0, recompute="none", micro_batch=1)
    whole = priced(replace(choice, offload=Offload(activations=1.0)))
    (away,) = (
        float(a.activations - b.activations)
        for a, b in zip(priced(choice).memory, whole.memory, strict=True)
    )
    copy_s = away / (CLUSTER.device.host_link.si * HOST_LINK_FRACTION)
    base = load_framework("meshwright")
    on = machine(CLUSTER, with_overlap(base, base.overlap.hidden - {"offload"}))
    exposed = priced(replace(choice, offload=Offload(activations=1.0)), on)
    assert exposed.breakdown_s["offload"] == pytest.approx(2 * 64 * copy_s, rel=1e-6)
    assert whole.breakdown_s["offload"] < exposed.breakdown_s["offload"] / 2
