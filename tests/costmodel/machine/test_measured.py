"""`costmodel.machine.measured` and what asks it: samples first, then fits, then
rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.machine.measured import Measured
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import local_shape
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.stages.pipeline_p2p import sends
from profiles.errors import StaleProfile
from profiles.hardware.catalog import cluster, device
from profiles.samples.table import CollectiveKey, OperatorKey, Sample, Samples
from tests.support.sampled import (
    DEVICE,
    collective_key,
    job,
    local,
    on,
    operator_key,
    sample,
    samples,
)

Table = Mapping[OperatorKey, Sample]


def table(found: Samples, ranks: int = 1) -> Measured:
    return Measured(samples=found, device=DEVICE, ranks=ranks, shares_cores=True)


def priced(choice: Uniform, where: Machine) -> Estimate:
    layout = spell_out(choice, job().graph, job().global_batch)
    return estimate(job(), where.cluster, layout, on=where)


def degrees(tp: int, *, split: bool, micro_batch: int = 2) -> Degrees:
    return Degrees(
        tp=np.asarray(tp),
        cp=np.asarray(1),
        micro_batch=np.asarray(micro_batch),
        seq_len=job().seq_len,
        sequence_parallel=split,
    )


# What an operator of gpt-tiny is on a rank: 4 layers of width 256, 8 heads, 512
# tokens of vocabulary, two sequences of 256 tokens.
@pytest.mark.parametrize(
    ("block", "operator", "whole", "halves", "split"),
    [
        ("layer", "qkv", (512, 768, 256), (512, 384, 256), (512, 384, 256)),
        ("layer", "mlp_down", (512, 256, 1024), (512, 256, 512), (512, 256, 512)),
        ("layer", "input_norm", (512, 256), (512, 256), (256, 256)),
        ("layer", "mlp_residual", (512, 256), (512, 256), (256, 256)),
        ("layer", "activation", (512, 1024), (512, 512), (512, 512)),
        ("layer", "attention", (2, 8, 8, 256, 32), (2, 4, 4, 256, 32), None),
        ("embedding", "table", (512, 512, 256), (512, 256, 256), None),
        ("embedding", "positions", (512, 256), (512, 256), (256, 256)),
        ("head", "loss", (512, 512), (512, 256), (512, 256)),
    ],
)
def test_local_shapes(
    block: str,
    operator: str,
    whole: tuple[int, ...],
    halves: tuple[int, ...],
    split: tuple[int, ...] | None,
) -> None:
    where = job().graph.block(block)
    asked = (degrees(1, split=False), degrees(2, split=False), degrees(2, split=True))
    for found, expected in zip(asked, (whole, halves, split or halves), strict=True):
        _, dims = local_shape(where.operator(operator), where, found)
        assert tuple(int(size) for size in dims) == expected


@cache
def alone() -> Machine:
    """One rank, with a sample of everything that a step of gpt-tiny does."""
    known = samples(job(), ranks=1)
    count = int(_parameters())
    own = (operator_key(kind, "forward", (count,), 1) for kind in STEP)
    everything = {**known.operators, **{key: sample(1e-3) for key in own}}
    return machine(local(1), samples=replace(known, operators=everything))


STEP = ("adamw", "gradient-norm", "accumulate")


def _parameters() -> float:
    found = priced(Uniform(precision="fp32"), machine(local(1)))
    return float(found.memory[0].parameters) / 4


def test_a_step_is_the_sum_of_its_samples() -> None:
    found = priced(Uniform(precision="fp32", micro_batch=2), alone())
    known = alone().measured
    assert known is not None
    table = known.samples.operators

    def s(kind: str, *shape: int) -> float:
        halves = ("backward-input", "backward-weight")
        ways = ("forward", *(halves if kind == "matmul" else ("backward",)))
        return sum(table[operator_key(kind, way, shape, 1)].seconds for way in ways)

    layer = (
        2 * s("layernorm", 512, 256)
        + s("matmul", 512, 768, 256)
        + s("attention", 2, 8, 8, 256, 32)
        + s("matmul", 512, 256, 256)
        + 2 * s("residual", 512, 256)
        + s("matmul", 512, 1024, 256)
        + s("gelu", 512, 1024)
        + s("matmul", 512, 256, 1024)
    )
    ends = (
        s("lookup", 512, 512, 256)
        + s("positions", 512, 256)
        + s("layernorm", 512, 256)
        + s("matmul", 512, 512, 256)
        + s("cross-entropy", 512, 512)
    )
    m, once = 4, 1e-3
    expected = m * (job().graph.body * layer + ends + once) + 2 * once
    assert found.step_time_s == pytest.approx(expected, rel=1e-9)
    assert found.price_sources is not None
    assert found.price_sources.measured == pytest.approx(1.0)
    assert found.breakdown_s["optimizer"] == pytest.approx(2 * once)


def test_shapes_between_samples_are_fitted_and_far_ones_are_not_known() -> None:
    shapes = [(rows, 256, width) for rows in (128, 256, 512) for width in (256, 512)]
    taken = {
        operator_key("matmul", "forward", shape, 1): sample(
            1e-5 + np.prod(shape) * 4e-11
        )
        for shape in shapes
    }
    found = table(Samples(operators=taken))
    dims = (np.array([256, 384, 1, 10**6]), 256, np.array([256, 256, 1, 10**4]))
    answer = found.operator("matmul", "forward", dims, "fp32")
    assert answer is not None
    assert answer.measured_s[0] == answer.seconds[0] == taken[_key(256)].seconds
    between = 1e-5 + 384 * 256 * 256 * 4e-11
    assert answer.fitted_s[1] == pytest.approx(between, rel=1e-6)
    assert np.isnan(answer.seconds[2:]).all()
    assert found.operator("gelu", "forward", (1, 1), "fp32") is None
    assert found.operator("matmul", "forward", dims, "bf16") is None


def _key(rows: int) -> OperatorKey:
    return operator_key("matmul", "forward", (rows, 256, 256), 1)


def test_what_is_left_out_comes_back_within_its_noise() -> None:
    """The samples are off by up to 10 % either way; so are fits of those left out."""
    known = on("gpt-tiny", 4).measured
    assert known is not None
    for kind in ("matmul", "gelu", "attention"):
        found = known.crowded(4).table(kind, "forward", "fp32")
        assert found is not None
        assert found.fit.residual < 0.1
        assert np.quantile(np.abs(found.fit.left_out), 0.9) < 0.25


def test_samples_are_those_of_as_many_ranks_at_work_or_nearly_so() -> None:
    taken = {
        operator_key("gelu", "forward", (8, 8), ranks): sample(ranks * 1e-3)
        for ranks in (1, 4)
    }
    beside = replace(_gelu(), co_running="all_reduce")
    found = table(Samples(operators={**taken, beside: sample(9.0)}), ranks=1)
    for ranks, used in ((1, 1), (2, 1), (3, 4), (4, 4), (16, 4)):
        answer = found.crowded(ranks).operator("gelu", "forward", (8, 8), "fp32")
        assert answer is not None
        assert float(answer.seconds) == used * 1e-3
    assert not list(found.crowded(4).remarks())
    assert "with 16 ranks" in "".join(found.crowded(16).remarks())
    apart = replace(found, ranks=4, shares_cores=False)  # a GPU has its cores alone
    answer = apart.operator("gelu", "forward", (8, 8), "fp32")
    assert answer is not None
    assert float(answer.seconds) == 1e-3


def _gelu() -> OperatorKey:
    return operator_key("gelu", "forward", (8, 8), 1)


def exchanges(taken: Mapping[CollectiveKey, float], ranks: int = 4) -> Machine:
    known = {key: sample(seconds) for key, seconds in taken.items()}
    return machine(local(ranks), samples=Samples(collectives=known)).running(ranks)


def test_collectives_have_curves_of_their_own() -> None:
    taken = {
        collective_key("all_reduce", 4, 2**20): 1e-3,
        collective_key("all_reduce", 4, 2**24): 16e-3,
        collective_key("reduce_scatter", 4, 2**20): 2e-3,  # gloo's is no cheaper
    }
    where, size = exchanges(taken), np.array([2.0**10, 2.0**20, 2.0**22, 2.0**25])
    four = np.asarray(4)
    found = where.collective("all_reduce", size, ranks=four, near=four)
    assert found.seconds == pytest.approx([1e-3, 1e-3, 4e-3, 32e-3])
    assert found.measured_s == pytest.approx([0, 1e-3, 0, 0])
    scattered = where.collective_s("reduce_scatter", size, ranks=four, near=four)
    assert scattered[1] == pytest.approx(2e-3)
    gathered = where.collective("all_gather", size, ranks=four, near=four)
    assert not np.any(gathered.measured_s + gathered.fitted_s)
    two = np.asarray(2)
    other = where.collective("all_reduce", size, ranks=two, near=two)
    plain = machine(local(4)).collective_s("all_reduce", size, ranks=two, near=two)
    assert other.seconds == pytest.approx(plain)


def test_one_rank_has_nobody_to_talk_to() -> None:
    where = exchanges({collective_key("all_reduce", 4, 2**20): 1e-3})
    ranks = np.array([1, 4])
    found = where.collective_s(
        "all_reduce", np.asarray(2.0**20), ranks=ranks, near=ranks
    )
    assert found.tolist() == [0.0, pytest.approx(1e-3)]


def test_groups_that_talk_at_once_are_those_that_are_there() -> None:
    taken = {
        collective_key("all_reduce", 2, 2**20): 1e-3,
        collective_key("all_reduce", 2, 2**20, groups=2): 3e-3,
    }
    two, size = np.asarray(2), np.asarray(2.0**20)
    for ranks, seconds in ((2, 1e-3), (4, 3e-3)):
        where = exchanges(taken, ranks)
        found = where.collective_s("all_reduce", size, ranks=two, near=two)
        assert float(found) == pytest.approx(seconds)


def test_a_steps_reduction_is_as_long_as_it_was_measured() -> None:
    """Fitted links are faster at a step's end than beside compute; samples are not."""
    four = np.asarray(4)
    where = exchanges({collective_key("all_reduce", 4, 2**20): 1e-3})
    sizes = np.array([2.0**20, 2.0**22])
    found = where.collective("all_reduce", sizes, ranks=four, near=four)
    assert where.once_a_step(found).seconds == pytest.approx(found.seconds)
    other = where.collective("all_gather", sizes, ranks=four, near=four)
    faster = where.framework.gradients.reduction
    assert faster < 1
    assert where.once_a_step(other).seconds == pytest.approx(faster * other.seconds)


def test_a_message_in_pieces() -> None:
    where = exchanges(
        {collective_key("all_gather", 4, 2**power): 1e-3 for power in (18, 20)}
    )
    four, size = np.asarray(4), np.asarray(2.0**20)
    found = where.collective("all_gather", size, ranks=four, near=four, pieces=4)
    assert float(found.seconds) == pytest.approx(4e-3)


def test_sends_are_never_faster_between_nodes() -> None:
    where = machine(cluster("dgx-a100-80gb"), samples=_slow_sends())
    near, far = where.send_s(np.asarray(2.0**20), far=np.array([False, True]))
    assert near == pytest.approx(1.0)
    assert far >= near


def test_sends_between_nodes_of_one_rank_are_as_measured() -> None:
    where = cluster("dgx-a100-80gb")
    far = where.island.levels[-1].kind
    key = replace(collective_key("send", 2, 2**20), fabric=far, ranks=(1, 2))
    found = machine(where, samples=Samples(collectives={key: sample(3.0)}))
    seconds = found.send_s(np.asarray(2.0**20), far=np.array([False, True]))
    plain = machine(where).send_s(np.asarray(2.0**20), far=np.array([False, True]))
    assert seconds.tolist() == pytest.approx([plain[0], 3.0])


def _slow_sends() -> Samples:
    kind = cluster("dgx-a100-80gb").island.levels[0].kind
    key = replace(collective_key("send", 2, 2**20), fabric=kind)
    return Samples(collectives={key: sample(1.0)})


def test_samples_of_another_device_are_refused() -> None:
    with pytest.raises(StaleProfile, match=f"of {DEVICE} with .* not of A100"):
        machine(cluster("dgx-a100-80gb"), samples=samples(job()))


def test_a_device_may_be_called_by_an_alias() -> None:
    where = cluster("dgx-a100-80gb")
    alias = device(where.device.name).aliases[0]
    key = replace(_gelu(), device=alias, precision="bf16")
    found = machine(where, samples=Samples(operators={key: sample(1.0)})).measured
    assert found is not None
    assert found.operator("gelu", "forward", (8, 8), "bf16") is not None


def test_ranks_of_a_cpu_hide_nothing() -> None:
    where = on("gpt-tiny", 4)
    assert where.framework.overlap.hidden == frozenset()
    assert machine(
        local(4), load_framework("fsdp2")
    ).framework.overlap.hidden  # as it was asked
    taken = np.array([1.0, 2.0])
    assert sends(taken, where).in_passes_s.tolist() == [1.0, 2.0]
    assert not sends(taken, where).beside_s.any()
    assert not where.hides(taken).any()
    gpu = machine(cluster("dgx-a100-80gb"))
    assert sends(taken, gpu).beside_s.tolist() == [1.0, 2.0]
    assert gpu.framework.overlap.hidden == {"grad", "param", "offload"}


def test_between_nodes_a_message_is_on_the_wire_while_ranks_compute() -> None:
    (island,) = local(2).islands
    node, wire = island.levels[0], replace(island.levels[0], kind="ethernet")
    apart = replace(
        island,
        nodes=2,
        devices_per_node=1,
        levels=(replace(node, devices=1), wire),
    )
    where = machine(replace(local(2), islands=(apart,)), samples=samples(job()))
    taken = np.array([1.0, 2.0])
    assert where.shares_cores
    assert sends(taken, where).beside_s.tolist() == [1.0, 2.0]
    assert not sends(taken, where).in_passes_s.any()


def test_sends_of_a_cpu_are_pipeline_communication() -> None:
    choice = Uniform(pp=2, precision="fp32", micro_batch=1)
    slow = {collective_key("send", 2, 2**10): 0.5}
    found = priced(choice, exchanges(slow, ranks=2))
    assert found.breakdown_s["pipeline_comm"] >= 8 * 0.5
    assert found.step_time_s > 16 * 0.5  # eight forwards and backwards cross


def test_the_interval_is_as_wide_as_the_samples_spread() -> None:
    known = on("gpt-tiny", 1).measured
    assert known is not None

    def width(spread: float) -> float:
        loose = {
            key: replace(one, spread=spread)
            for key, one in known.samples.operators.items()
        }
        where = machine(local(1), samples=replace(known.samples, operators=loose))
        low, high = priced(Uniform(precision="fp32"), where).interval["step_time_s"]
        return float(high / low)

    assert width(0.0) < width(0.2) < width(0.6)
    plain = priced(Uniform(precision="fp32"), machine(local(1)))
    assert (
        width(0.2)
        < plain.interval["step_time_s"][1] / (plain.interval["step_time_s"][0])
    )


def test_a_noisy_machine_is_named() -> None:
    noisy = replace(samples(job(), 1), machine={"noise": "noisy: spread 40 %"})
    found = priced(Uniform(precision="fp32"), machine(local(1), samples=noisy))
    assert any("noisy: spread 40 %" in line for line in found.warnings)
    assert not priced(Uniform(precision="fp32"), on("gpt-tiny", 1)).warnings
