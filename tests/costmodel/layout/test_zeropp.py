"""ZeRO++: what may have it, what its blocks cost, and what it leaves as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.layout.offload import NOTHING, PLAIN, Offload, ZeroPlus
from costmodel.layout.strategy import Uniform
from costmodel.machine.assembly import Machine
from costmodel.machine.quantized_collectives import (
    BLOCK,
    Group,
    gathering_bytes,
    reducing_bytes,
)
from costmodel.simulation.estimator import estimate
from costmodel.stages.data_parallelism import DataParallel, exchanges
from costmodel.stages.optimizer_step import unit_work
from costmodel.support.legality import require_legal_layout, violations
from profiles.errors import Contradiction, InvalidSpec
from profiles.hardware.precisions import precision
from tests.golden.priced import job_of, layout_of, machine_of, priced

POLICY = precision("fp16", gradient="fp16")
COUNT = np.asarray(1e9)
SOME = (
    ZeroPlus(quantized_weights=True),
    ZeroPlus(hpz_partition_size=8),
    ZeroPlus(quantized_gradients=True),
)
ALL_THREE = ZeroPlus(
    quantized_weights=True, hpz_partition_size=8, quantized_gradients=True
)


def on() -> Machine:
    return machine_of("megatron-deepspeed")


def parallel(plus: ZeroPlus, *, dp: int = 64, zero: int = 3) -> DataParallel:
    one = np.asarray(1)
    return DataParallel(
        tp=one,
        cp=one,
        dp=np.asarray(dp),
        zero=np.asarray(zero),
        zero_group=np.asarray(dp),
        quantized_weights=plus.quantized_weights,
        hpz_partition_size=plus.hpz_partition_size,
        quantized_gradients=plus.quantized_gradients,
    )


def test_it_says_what_is_chosen() -> None:
    assert str(PLAIN) == "none"
    assert str(ALL_THREE) == "quantized weights, hpZ 8, quantized gradients"
    assert not PLAIN.anything
    assert all(one.anything for one in SOME)


@pytest.mark.parametrize("size", [0, -8])
def test_a_partition_has_a_rank(size: int) -> None:
    with pytest.raises(InvalidSpec, match="at least 1"):
        ZeroPlus(hpz_partition_size=size)


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("gpt-13b", {}, None),
        ("gpt-13b", {"cp": 2, "dp": 32, "zero_group": 32}, None),
        ("gpt-13b", {"tp": 2, "dp": 32, "zero_group": 32}, None),
        ("gpt-13b", {"offload": Offload(optimizer=True)}, None),
        ("gpt-13b", {"zero": 0, "zero_group": 1}, "needs --zero 3, not 0"),
        ("gpt-13b", {"zero": 2}, "needs --zero 3, not 2"),
        ("gpt-13b", {"zero_group": 8}, "leave --zero-group out"),
        (
            "gpt-13b",
            {"dp": 12, "zero_group": 12},
            "8 does not divide the dp × cp = 12 ranks",
        ),
        ("gpt-13b", {"offload": Offload(parameters=True)}, "--offload parameters"),
        ("mixtral-8x7b", {}, "with experts is not priced"),
    ],
)
def test_what_it_goes_with(
    model: str, changes: dict[str, Any], said: str | None
) -> None:
    """The numbers and the layout that they spell out are told the same."""
    job = job_of(model, 768)
    where = on().cluster
    shape: dict[str, Any] = {"dp": 64, "zero": 3, "zero_group": 64, **changes}
    choice = Uniform(**shape, zero_plus=ALL_THREE)
    found = list(violations(choice, job, where))
    layout = layout_of(job, choice)
    if said is None:
        assert found == []
        require_legal_layout(layout, job, where)
    else:
        assert any(said in one for one in found)
        with pytest.raises(Contradiction) as error:
            require_legal_layout(layout, job, where)
        assert said in str(error.value)


def test_quantised_weights_may_come_from_the_host() -> None:
    away = Uniform(zero=3, zero_group=64, dp=64, offload=Offload(parameters=True))
    for plus in (SOME[0], SOME[2]):
        choice = replace(away, zero_plus=plus)
        assert list(violations(choice, job_of("gpt-13b", 64), on().cluster)) == []


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_below_zero_3_nothing_is_another(zero: int) -> None:
    """Columns price what is not legal too."""
    plain, asked = (
        exchanges(COUNT, parallel(plus, zero=zero), POLICY, on())
        for plus in (PLAIN, ALL_THREE)
    )
    for name in ("forward_gather", "backward_gather", "backward_reduce", "step_reduce"):
        assert getattr(plain, name).seconds == getattr(asked, name).seconds
    work = unit_work(COUNT, parallel(ALL_THREE, zero=zero), POLICY, on(), units=1)
    assert work.of_micro_batch.seconds == 0


def test_each_choice_changes_its_own_exchange_alone() -> None:
    names = ("forward_gather", "backward_gather", "backward_reduce")
    plain = exchanges(COUNT, parallel(PLAIN), POLICY, on())
    for own, plus in zip(names, SOME, strict=True):
        found = exchanges(COUNT, parallel(plus), POLICY, on())
        for name in names:
            before, after = getattr(plain, name).seconds, getattr(found, name).seconds
            assert after < before if name == own else after == before


def test_inside_a_node_gradients_travel_as_they_are() -> None:
    plain, asked = (
        exchanges(COUNT, parallel(plus, dp=8), POLICY, on())
        for plus in (PLAIN, ZeroPlus(quantized_gradients=True))
    )
    assert asked.backward_reduce.seconds == plain.backward_reduce.seconds
    work = unit_work(COUNT, parallel(SOME[2], dp=8), POLICY, on(), units=1)
    assert work.backward.seconds == 0


def test_one_rank_gathers_nothing_and_makes_no_blocks() -> None:
    alone = parallel(ZeroPlus(quantized_weights=True, quantized_gradients=True), dp=1)
    work = unit_work(COUNT, alone, POLICY, on(), units=1)
    assert work.forward.seconds == work.backward.seconds == 0
    assert exchanges(COUNT, alone, POLICY, on()).of_micro_batch.seconds == 0


def test_bytes_that_blocks_move() -> None:
    """By hand, of 64 ranks in nodes of 8: a weight of 2 bytes becomes one, and one 2; a
    gradient becomes half a byte, that of eight are read and an eighth of a half is
    written, read again and added up in 2 bytes."""
    group = Group(ranks=np.asarray(64), stride=np.asarray(1), near=np.asarray(8))
    scale = 4 / BLOCK
    wanted = (2 + 1 + scale) * (1 + 1 / 64)
    assert gathering_bytes(COUNT, group, 2.0) / COUNT == pytest.approx(wanted)
    wanted = 2 + 0.5 + scale + 0.5 + scale + (0.5 + scale + 0.5 + scale + 4) / 8
    assert reducing_bytes(COUNT, group, 2.0) / COUNT == pytest.approx(wanted)


def test_blocks_cost_bytes_at_the_speed_of_memory() -> None:
    machine = on()
    work = unit_work(COUNT, parallel(ALL_THREE), POLICY, machine, units=1)
    group = parallel(ALL_THREE).shard_group(machine)
    second = 2 * 2 * COUNT / 8  # read, and written
    wanted = gathering_bytes(COUNT, group, 2.0) + second
    fit = machine.rates.traffic
    per_s = machine.device.memory_bytes_per_s * fit.fraction
    passes = (wanted, reducing_bytes(COUNT, group, 2.0))
    for found, size in zip((work.forward, work.backward), passes, strict=True):
        assert float(found.seconds - fit.overhead_s) == pytest.approx(size / per_s)


def test_a_layout_is_dearer_in_bytes_and_cheaper_in_seconds() -> None:
    shape = {"dp": 64, "zero": 3, "zero_group": 64, "recompute": "full"}
    job = job_of("gpt-13b", 64)
    plain = priced(job, on(), **shape, precision="fp16")
    for plus in (*SOME, ALL_THREE):
        found = priced(job, on(), **shape, precision="fp16", zero_plus=plus)
        assert found.step_time_s < plain.step_time_s
        assert found.breakdown_s["data_comm"] < plain.breakdown_s["data_comm"]
        assert found.breakdown_s["compute"] >= plain.breakdown_s["compute"]
        assert found.peak_memory_bytes > plain.peak_memory_bytes


def test_every_stage_holds_its_part_of_the_second_copy() -> None:
    shape = {"pp": 4, "dp": 16, "zero": 3, "zero_group": 16, "precision": "fp16"}
    job = job_of("gpt-13b", 768)
    plain, second = (
        priced(job, on(), **shape, zero_plus=plus) for plus in (PLAIN, SOME[1])
    )
    for before, after in zip(plain.memory, second.memory, strict=True):
        shard = float(before.parameters)  # a sixteenth of 2 bytes
        assert float(after.parameters) == pytest.approx(shard * (1 + 16 / 8))


def test_layouts_that_differ_in_it_alone_are_priced_apart() -> None:
    """Nothing that is known of one is taken for the other."""
    job = job_of("gpt-13b", 64)
    shape = Uniform(dp=64, zero=3, zero_group=64, precision="fp16")
    layouts = [
        layout_of(job, replace(shape, zero_plus=plus)) for plus in (PLAIN, ALL_THREE)
    ]
    assert layouts[0] != layouts[1]
    assert layouts[0].offload == layouts[1].offload == NOTHING
    found = {
        estimate(job, on().cluster, layout, on=on()).step_time_s for layout in layouts
    }
    assert len(found) == 2
