"""In how many messages shards travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.stages.data_parallelism import DataParallel, messages_of
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision

BF16 = precision("bf16")


def on(**habits: Any) -> Machine:
    framework = load_framework("fsdp2").variant(gradients=habits)
    return machine(cluster("dgx-a100-80gb"), framework)


def parallel(dp: int, zero: int) -> DataParallel:
    one, dp_, level = np.array(1), np.array(dp), np.array(zero)
    return DataParallel(tp=one, cp=one, dp=dp_, zero=level, zero_group=dp_)


@pytest.mark.parametrize("zero", [1, 3])
def test_layer_by_layer_and_tensor_by_tensor(zero: int) -> None:
    where = on(messages=9.0)
    assert messages_of(np.array(1e9), parallel(8, zero), np.array(4), BF16, where) == 36


@pytest.mark.parametrize(("dp", "buckets"), [(8, 25), (100, 10), (5000, 1)])
def test_buckets_grow_with_the_ranks(dp: int, buckets: int) -> None:
    where = on(shard_bucket=(4e7, 1e6))
    found = messages_of(np.array(1e9), parallel(dp, 1), np.array(4), BF16, where)
    assert found == buckets


def test_what_is_gathered_for_passes_is_so_layer_by_layer() -> None:
    where = on(shard_bucket=(4e7, 1e6))
    assert messages_of(np.array(1e9), parallel(8, 3), np.array(4), BF16, where) == 4
