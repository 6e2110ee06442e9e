"""What is in memory together: passes or the optimizer's step; communicators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.layout.offload import NOTHING, Offload
from costmodel.machine.framework import PLAIN, Footprint, footprints
from costmodel.stages.data_parallelism import DataParallel
from costmodel.stages.device_memory import (
    COMMUNICATOR_BYTES,
    FRAGMENTATION,
    ONE_COMMUNICATOR_BYTES,
    PINNED,
    Memory,
    PeakContents,
    Process,
    StatePolicy,
    memory,
)
from profiles.hardware.catalog import device
from profiles.hardware.precisions import precision
from profiles.units import MB, GiB

A100 = device("a100-sxm-80gb")
COUNT = GiB  # parameters of a rank
COPIES = Footprint(fp16_gradients="half-then-fp32", step_bytes=8)


def held(activations_gib: float, habits: Footprint = COPIES, **changes: Any) -> Memory:
    """A rank's memory: 1 GiB parameters in fp16, two replicas."""
    ways = {"tp": 1, "cp": 1, "dp": 2, "zero": 1, "zero_group": 2, "pp": 1}
    ways["copies"] = 1
    named = {name: np.asarray(changes.pop(name, ways[name])) for name in ways}
    return memory(
        PeakContents(
            parameters=np.asarray(float(COUNT)),
            gathered_bytes=np.zeros(()),
            activation_bytes=np.asarray(activations_gib * GiB),
            transient_bytes=np.zeros(()),
        ),
        policy=StatePolicy(
            precision=precision("fp16"),
            moments=2,
            offload=changes.pop("offload", NOTHING),
        ),
        process=Process(
            device=changes.pop("device", A100),
            ranks=np.asarray(changes.pop("ranks", 2)),
            fully_shard=changes.pop("fully_shard", False),
            footprint=habits,
        ),
        parallel=DataParallel(**named),
        **changes,
    )


def gib(size: Any) -> float:
    return float(size) / GiB


def spare(found: Memory) -> float:
    return gib(found.reserve) - FRAGMENTATION * gib(found.allocated)


def test_activations_and_the_copies_of_the_step_are_never_there_at_once() -> None:
    """A shard of half the parameters copies 4 and makes 8 bytes of each: 6 GiB."""
    passes, step = held(9), held(4)
    assert (gib(passes.activations), gib(passes.transient)) == (9, 0)
    assert (gib(step.activations), gib(step.transient)) == (0, 6)
    assert gib(passes.gradients) == gib(step.gradients) == 2
    # Blocks of a whole shard are new ones: the allocator keeps those of the other part.
    assert spare(passes) == pytest.approx(6)
    assert spare(step) == pytest.approx(4)


def test_copies_of_single_parameters_take_the_blocks_of_the_passes() -> None:
    assert spare(held(9, zero=3)) == pytest.approx(0)
    assert spare(held(9, zero=1, fully_shard=True)) == pytest.approx(0)


@pytest.mark.parametrize(("micro_batches", "gradients_gib"), [(1, 0), (2, 4)])
def test_a_single_backward_scatters_gradients_under_zero_1_too(
    micro_batches: int, gradients_gib: float
) -> None:
    """Where there are more, fp32 gradients of 1 GiB parameters stay whole between."""
    ways = {"fully_shard": True, "micro_batches": micro_batches}
    found = held(9, PLAIN, zero=1, **ways)
    assert gib(found.gradients) == gradients_gib
    scattered = held(9, PLAIN, zero=2, **ways)
    assert (float(found.total) == float(scattered.total)) == (micro_batches == 1)


@pytest.mark.parametrize(("zero", "gradients_gib"), [(1, 0), (2, 0), (3, 1)])
def test_gradients_of_a_single_backward_come_as_weights_go(
    zero: int, gradients_gib: float
) -> None:
    """Below ZeRO-3 whole weights, which are more; with it activations, of 1 GiB."""
    found = held(1, PLAIN, zero=zero, fully_shard=True, micro_batches=1)
    assert gib(found.gradients) == gradients_gib


def test_blocks_that_nothing_uses_are_given_back_before_the_device_is_full() -> None:
    capacity = A100.capacity_bytes
    full, over = held(62), held(75)
    assert float(full.total) == pytest.approx(capacity)
    assert 0 < spare(full) < 6
    kept = float(full.reserve) - PINNED * float(full.allocated)
    assert float(full.needed) == pytest.approx(capacity - kept)
    assert float(over.total) == float(over.needed) > capacity
    assert float(over.reserve) == pytest.approx(PINNED * float(over.allocated))


def test_states_that_are_single_tensors_leave_no_fragments() -> None:
    """Weights and the shard's 12 bytes of each half: of the gradients, and of what
    comes and goes, as much as before."""
    loose, flat = held(9), held(9, replace(COPIES, flat_states=True))
    assert gib(flat.allocated) == gib(loose.allocated)
    assert spare(loose) - spare(flat) == pytest.approx(FRAGMENTATION * (2 + 6))
    fewer = gib(loose.needed) - gib(flat.needed)
    assert fewer == pytest.approx(PINNED * (2 + 6))


def test_what_a_footprint_copies_is_not_on_the_device_with_the_optimizer() -> None:
    away = held(4, offload=Offload(optimizer=True))
    assert gib(away.transient) == 0
    assert gib(away.activations) == 4


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("h100-sxm-80gb", 1),
        ("a100-sxm-80gb", 1.6),
        ("v100-sxm-32gb", 0.12),
        ("tpu-v4", 0),
    ],
)
def test_communicators_are_as_large_as_a_device_has_channels(
    name: str, share: float
) -> None:
    found = held(1, tp=2, device=device(name))
    assert float(found.communication) == pytest.approx(share * COMMUNICATOR_BYTES)
    assert float(held(1, ranks=1, device=device(name)).communication) == 0


@pytest.mark.parametrize(("zero", "left_bytes"), [(1, 4 * COUNT), (2, 64 * MB)])
def test_gradients_on_a_drive_wait_in_the_memory_of_a_cpu_until_they_are_a_bucket(
    zero: int, left_bytes: float
) -> None:
    away = Offload(optimizer=True, tier="nvme")
    ways = {"zero": zero, "fully_shard": True, "offload": away}
    ours = held(9, PLAIN, device=device("cpu"), **ways)
    assert float(ours.gradients) == left_bytes
    on_gpus = held(9, PLAIN, **ways)
    assert float(on_gpus.gradients) == (0 if zero == 2 else left_bytes)


def test_data_parallelism_alone_has_the_communicator_of_the_whole_job() -> None:
    for zero in (0, 1, 3):
        alone, beside = held(1, zero=zero), held(1, zero=zero, tp=2)
        assert float(alone.communication) == ONE_COMMUNICATOR_BYTES
        assert float(beside.communication) > 2 * ONE_COMMUNICATOR_BYTES
    facing = held(1, pp=1, copies=2)  # two pipelines over the same two ranks: chimera
    assert float(facing.communication) > 2 * ONE_COMMUNICATOR_BYTES
    v100 = device("v100-sxm-32gb")  # few channels, whatever the groups
    alone, beside = held(1, device=v100), held(1, tp=2, device=v100)
    assert float(alone.communication) == float(beside.communication)


def test_the_step_of_internevo_makes_28_bytes_a_parameter() -> None:
    """2 + 2 + 12, 4 of the gradient's copy and 8 of AdamW's."""
    habits = replace(footprints()["internevo"], fp16_gradients="half-then-fp32")
    assert gib(held(1, habits, dp=1, zero_group=1).allocated) == pytest.approx(28)


@pytest.mark.parametrize(
    ("offload", "expected"),
    [
        (Offload(), 16 / 2),  # the shard is the fp32 weight; gradient 4, moments 8
        (Offload(optimizer=True), 4 / 2),  # shards stay for the passes
        (Offload(optimizer=True, parameters=True), 0),
    ],
)
def test_shards_of_fully_shard_are_the_fp32_weights(
    offload: Offload, expected: float
) -> None:
    habits = footprints()["meshwright"]
    found = held(1, habits, zero=3, fully_shard=True, offload=offload)
    assert gib(found.allocated) - 1 == pytest.approx(expected)


def test_on_one_rank_weights_of_16_bits_have_masters_beside_them() -> None:
    habits = footprints()["meshwright"]
    found = held(1, habits, dp=1, zero_group=1, zero=3, fully_shard=True)
    assert gib(found.allocated) - 1 == pytest.approx(18)
