"""What software and sites do that hides nothing: one stream, and blocking launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.machine.coefficients import Coefficients
from costmodel.machine.collectives import link_rates
from costmodel.machine.framework import (
    Framework,
    framework_at,
    framework_of_run,
    hides_gradients,
    load_framework,
)
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.stages.data_parallelism import DataParallel
from costmodel.stages.optimizer_step import accumulation_bytes
from costmodel.stages.pipeline_p2p import layout_tied_sync
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec

CLUSTER = cluster("dgx-a100-80gb")
JOB = Job(model="gpt-1.3b", spec=model("gpt-1.3b").spec, seq_len=2048, global_batch=16)

FITTED = Coefficients(entries=())  # nothing of what training adds


def priced(base: Framework, where: Cluster = CLUSTER, **degrees: Any) -> Estimate:
    choice = Uniform(zero=0, **degrees)
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    return estimate(JOB, where, layout, on=machine(where, base, fitted=FITTED))


@pytest.mark.parametrize(("tp", "more"), [(1, False), (4, True)])
def test_one_stream_hides_no_gradient_beside_tensor_parallelism(
    tp: int, more: bool
) -> None:
    own = load_framework("oneflow")
    apart = own.variant(overlap={"one_stream": False})
    (one, both) = (priced(base, tp=tp, dp=8, micro_batch=2) for base in (own, apart))
    assert (one.breakdown_s["data_comm"] > both.breakdown_s["data_comm"]) is more
    assert (one.step_time_s > both.step_time_s) is more


def test_where_gradients_are_reduced_behind_the_last_backward() -> None:
    degrees = np.array([1, 2, 8])
    assert hides_gradients(load_framework("oneflow"), degrees).tolist() == [
        True,
        False,
        False,
    ]
    assert hides_gradients(load_framework("megatron-core"), degrees).all()
    assert not hides_gradients(load_framework("megatron-lm"), degrees).any()
    levels = np.array([0, 1, 2])
    assert hides_gradients(load_framework("nanotron"), 1, levels).tolist() == [
        True,
        False,
        True,
    ]


def test_nanotrons_gathered_weights_are_copied_out_rank_by_rank() -> None:
    """The host's calls grow with the ranks; nothing is copied without ZeRO-1."""
    base = load_framework("nanotron")
    plain = base.variant(gradients={"copied_out": 0.0})

    def more_s(dp: int, zero: int) -> float:
        shards = dp if zero else 1
        choice = Uniform(dp=dp, zero=zero, zero_group=shards, micro_batch=1)
        layout = spell_out(choice, JOB.graph, JOB.global_batch)
        one, other = (
            estimate(JOB, CLUSTER, layout, on=machine(CLUSTER, how, fitted=FITTED))
            for how in (base, plain)
        )
        return one.step_time_s - other.step_time_s

    assert more_s(16, 1) == pytest.approx(2 * more_s(8, 1))
    assert more_s(8, 1) > 0 == more_s(8, 0)


@pytest.mark.parametrize("micro_batch", [1, 8])
def test_a_host_that_waits_for_each_kernel_adds_its_time(micro_batch: int) -> None:
    """The sum is more than the softer maximum, most so where both are alike."""
    waits = replace(CLUSTER, blocks_launches=True)
    base = load_framework("megatron-lm")
    alone, sum_of = (
        priced(base, where, tp=1, micro_batch=micro_batch).step_time_s
        for where in (CLUSTER, waits)
    )
    assert alone < sum_of <= 2 * alone


def test_waiting_for_each_kernel_takes_the_host_longer() -> None:
    waits, base = replace(CLUSTER, blocks_launches=True), load_framework("megatron-lm")
    twice = framework_at(waits, base, blocked=2.0)
    assert twice.host.forward_us == 2 * base.host.forward_us
    assert twice.host.backward_us == 2 * base.host.backward_us
    assert framework_at(CLUSTER, base, blocked=2.0) == base
    host = machine(waits, base).framework.host.forward_us
    assert host > machine(CLUSTER, base).framework.host.forward_us


def test_the_nodes_that_trained_bloom_block_launches() -> None:
    assert cluster("jean-zay-a100").blocks_launches
    assert not cluster("jean-zay-v100-32gb").blocks_launches


def test_megatron_lm_of_2021_accumulates_beside_its_products() -> None:
    """Their fusion came in 2022."""
    assert framework_of_run("Megatron-LM v2.x").gradients.accumulation == "separate"
    assert framework_of_run("Megatron-LM").gradients.accumulation == "fused"


def moved(framework: str, number: str) -> float:
    """Bytes that adding one gradient up moves."""
    on = machine(CLUSTER, load_framework(framework), fitted=FITTED)
    one = np.ones(())
    alone = DataParallel(tp=one, cp=one, dp=one, zero=0 * one, zero_group=one)
    return float(accumulation_bytes(one, alone, precision(number), on))


def test_deepspeeds_bf16_optimizer_casts_gradients_before_it_adds_them_up() -> None:
    """2 bytes read, 4 written and read again, and 4 + 4 of the sum; fp16 ones are
    added up as they are."""
    assert moved("megatron-deepspeed", "bf16") == 2 + 4 + 4 + 4 + 4
    assert moved("megatron-deepspeed", "fp16") == 2 + 2 + 2


def test_aleph_alphas_library_adds_16_bit_gradients_up_in_16_bits() -> None:
    assert moved("aa-scaling", "bf16") == moved("aa-scaling", "fp16") == 2 + 2 + 2
    assert moved("megatron-lm-2021", "bf16") == 2 + 4 + 4


def test_autocast_copies_weights_and_casts_gradients_back() -> None:
    """4 bytes read and 2 written for each forward; 2 read, 4 written and read again,
    and 4 + 4 of the sum."""
    cast_back = 2 + 4 + 4 + 4 + 4
    assert moved("megatron-lm-2021", "amp-bf16") == 4 + 2 + cast_back
    assert moved("megatron-lm-2021", "fp32") == 4 + 4 + 4


def test_aleph_alphas_library_all_reduces_the_gradients_of_shards_whole() -> None:
    base = load_framework("aa-scaling")
    layout = spell_out(
        Uniform(dp=16, zero=1, zero_group=16), JOB.graph, JOB.global_batch
    )
    whole, plain, scattered = (
        estimate(JOB, CLUSTER, one, on=machine(CLUSTER, how, fitted=FITTED))
        for one, how in (
            (layout, base),
            (spell_out(Uniform(dp=16, zero=0), JOB.graph, JOB.global_batch), base),
            (layout, base.variant(gradients={"reduces_whole": False})),
        )
    )
    least, more, most = (
        one.breakdown_s["data_comm"] for one in (scattered, plain, whole)
    )
    assert least < more < most  # which gathers weights beside


def test_what_xla_makes_again_is_what_backward_needs() -> None:
    spec = JOB.spec
    assert isinstance(spec, DecoderSpec)
    job = replace(JOB, spec=replace(spec, dropout=0.0))
    choice = Uniform(tp=1, dp=8, zero=3, zero_group=8, micro_batch=2, recompute="full")
    layout = spell_out(choice, job.graph, job.global_batch)
    base = framework_of_run("Pathways/T5X")
    needed, whole = (
        estimate(job, CLUSTER, layout, on=machine(CLUSTER, one, fitted=FITTED))
        for one in (base, replace(base, stops_early=False))
    )
    assert needed.step_time_s < whole.step_time_s


def test_nothing_that_is_fitted_to_infiniband_is_slingshots() -> None:
    alps = machine(cluster("gh200-4x-slingshot"), load_framework("megatron-lm"))
    alone = link_rates(alps.island).outer.training
    assert alps.links.outer.training == pytest.approx(alone, rel=0.01)


def test_gradients_travel_in_16_bits_under_megatron_fsdp() -> None:
    halves = load_framework("megatron-core")
    whole = halves.variant(gradients={"reduce_shards": ""})
    for zero, less in ((1, False), (3, True)):
        choice = Uniform(zero=zero, zero_group=16, dp=16, micro_batch=1)
        layout = spell_out(choice, JOB.graph, JOB.global_batch)
        one, other = (
            estimate(JOB, CLUSTER, layout, on=machine(CLUSTER, base))
            for base in (halves, whole)
        )
        assert (one.step_time_s < other.step_time_s) is less


def test_tied_gradients_are_summed_as_fast_as_others_at_a_steps_end() -> None:
    """Links are alone there: `reduction` is less than 1."""
    on = machine(cluster("dgx-a100-80gb"), load_framework("megatron-lm"))
    slower = replace(on, framework=on.framework.variant(gradients={"reduction": 1.0}))
    layout = spell_out(Uniform(pp=2, dp=8, zero=0), JOB.graph, JOB.global_batch)
    fast_s, slow_s = (
        float(layout_tied_sync(layout, JOB, one).seconds.max()) for one in (on, slower)
    )
    assert fast_s == pytest.approx(slow_s * on.framework.gradients.reduction)
    assert 0 < fast_s < slow_s
