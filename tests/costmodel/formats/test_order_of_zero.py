"""Row I3: the order that Hugging Face's DeepSpeed guide gives levels and offloading,
for 1.3 B parameters on one node of A100.

Speed     DDP > ZeRO-1 > ZeRO-2 > ZeRO-2 + offload > ZeRO-3 > ZeRO-3 + offload
Memory    the same, from most to least

Memory is in that order. Of speed two steps are not, and the price says why: DDP takes
longer than ZeRO-1, as each rank updates all parameters in place of an eighth, and its
last bucket is not hidden; and a step on the host takes longer than gathering weights
over NVLink, so that ZeRO-3 beats ZeRO-2 with offloading.
"""

from __future__ import annotations

from functools import cache

import pytest

from costmodel import simulate
from costmodel.simulation import Estimate
from tests.support.rows import Obtained

LADDER = (
    ("DDP", 0, None),
    ("1", 1, None),
    ("2", 2, None),
    ("2 + offload", 2, "optimizer"),
    ("3", 3, None),
    ("3 + offload", 3, "optimizer,parameters"),
)


@cache
def prices() -> dict[str, Estimate]:
    return {
        name: simulate(
            "gpt-1.3b",
            gpus=8,
            cluster="dgx-a100-80gb",
            framework="deepspeed",
            zero=zero,
            offload=offload,
            micro_batch=4,
            global_batch=256,
        )
        for name, zero, offload in LADDER
    }


@pytest.mark.row(
    "I3", "memory down the ladder of ZeRO and offloading", expected="falls at each rung"
)
def test_each_rung_needs_less_memory(obtained: Obtained) -> None:
    peaks = [one.peak_memory_bytes for one in prices().values()]
    obtained(" > ".join(f"{one / 1e9:.1f}" for one in peaks))
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)


def test_levels_are_slower_in_the_order_of_the_guide() -> None:
    found = {name: one.step_time_s for name, one in prices().items()}
    assert found["1"] < found["2"] < found["3"]
    assert found["2 + offload"] < found["3 + offload"]
    assert found["2"] < found["2 + offload"]
    assert found["3"] < found["3 + offload"]


def test_where_the_order_is_another_the_parts_say_why() -> None:
    found = prices()
    ddp, first = found["DDP"], found["1"]
    more = {
        name: seconds - first.breakdown_s[name]
        for name, seconds in ddp.breakdown_s.items()
    }
    assert ddp.step_time_s - first.step_time_s > 0
    assert max(more, key=lambda name: more[name]) == "optimizer"
    second, third = found["2 + offload"], found["3"]
    on_host = second.breakdown_s["optimizer"] + second.breakdown_s["offload"]
    gathers = third.breakdown_s["data_comm"] - second.breakdown_s["data_comm"]
    assert second.step_time_s > third.step_time_s
    assert on_host > gathers
