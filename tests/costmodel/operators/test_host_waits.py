"""What a device waits for its host, which has waited for counts of experts' rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.retention import preset
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.operators.host_overhead import waited_s
from costmodel.operators.work import OperatorPrice, Work
from costmodel.stages.block_cost import Atom, atom, block_prices
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.graph import Block
from tests.golden.priced import job_of

ONE = np.asarray(1)
DEGREES = Degrees(
    tp=ONE, cp=ONE, micro_batch=ONE, seq_len=4096, sequence_parallel=False, ep=ONE * 8
)


def on(**moe: Any) -> Machine:
    base = load_framework("megatron-core").variant(moe=moe)
    return machine(cluster("dgx-b200"), base)


def layer(capacity: float | None = None) -> Block:
    graph = job_of("deepseek-v2-lite", 32).graph
    return replace(graph.block("expert-layer"), capacity=capacity)


def prices(where: Machine, block: Block) -> dict[str, OperatorPrice]:
    return block_prices(block, DEGREES, precision("bf16"), where)


SOME = next(iter(prices(on(), layer()).values()))


def priced(host_s: float, device_s: float, *, waits: bool = False) -> OperatorPrice:
    work = Work(host_s=host_s, compute_s=np.asarray(device_s))
    return replace(SOME, forward=work, waits=waits)


def test_the_device_idles_while_the_host_issues_what_it_could_not_before() -> None:
    """From the wait: the second is issued at 2 and done at 3, the third at 5 and 6, the
    first of the next block at 6 and 16; busy are 12 of that."""
    block = [priced(1, 10), priced(2, 1, waits=True), priced(3, 1)]
    assert float(waited_s(block)) == pytest.approx(16 - 12)


TIMES = st.floats(0, 100)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8), st.data())
def test_a_wait_costs_at_most_what_would_have_overlapped(
    times: list[tuple[float, float]], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(times) - 1))
    block = [
        priced(host, device, waits=number == place)
        for number, (host, device) in enumerate(times)
    ]
    host_s, device_s = (sum(column) for column in zip(*times, strict=True))
    lost = float(waited_s(block))
    assert -1e-9 <= lost <= min(host_s, device_s) + 1e-9
    assert float(waited_s([replace(one, waits=False) for one in block])) == 0.0


def forward_s(retention: str, **moe: Any) -> Atom:
    block, where = layer(), on(**moe)
    found = prices(where, block)
    return atom(block, found, preset(retention, block), np.zeros(()))


def test_a_layer_of_experts_waits_forward_and_where_it_is_made_again() -> None:
    with_it, without = (forward_s("full", waits=one) for one in (True, False))
    lost = with_it.forward_s - without.forward_s
    assert lost > 0
    assert with_it.recompute_s - without.recompute_s == pytest.approx(float(lost))
    assert with_it.backward_s == without.backward_s
    assert forward_s("none", waits=True).recompute_s == 0


def test_experts_of_a_fixed_capacity_have_nothing_to_count() -> None:
    dropless, fixed = (prices(on(), layer(one)) for one in (None, 1.25))
    assert [name for name, one in dropless.items() if one.waits] == ["dispatch"]
    assert not any(one.waits for one in fixed.values())
