"""A layer's menu: closed sets, none beaten by another; the cheap-op rule among them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from costmodel.layout.offload import NOTHING, Offload
from costmodel.layout.retention import CORE, EVERYTHING, PRESETS, preset
from costmodel.machine.assembly import machine
from costmodel.operators.activation_compression import Packer
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import entry_bytes
from costmodel.simulation.remat_options import Option, lengths, menu, remade
from costmodel.stages.block_cost import block_prices
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.graph import Block
from profiles.models.job import Job

ON = machine(cluster("dgx-a100-80gb"))
POLICY = precision("bf16")


@cache
def options(
    name: str,
    offload: Offload = NOTHING,
    words: frozenset[str] | None = None,
    neighbours: int = 1,
    gathered_bytes: float = 0.0,
) -> tuple[Block, tuple[Option, ...]]:
    found = model(name)
    job = Job(model=name, spec=found.spec, seq_len=found.seq_len, global_batch=64)
    block, _ = job.graph.runs[0]
    degrees = Degrees(
        tp=np.asarray(8),
        cp=np.asarray(1),
        micro_batch=np.asarray(1),
        seq_len=job.seq_len,
        sequence_parallel=True,
    )
    return block, menu(
        block,
        block_prices(block, degrees, POLICY, ON),
        entry_bytes(block, degrees, POLICY),
        Packer.of(ON, POLICY),
        offload=offload,
        words=words,
        neighbours=neighbours,
        gathered_bytes=gathered_bytes,
    )


@pytest.mark.parametrize("name", ["gpt-13b", "llama3-70b", "mixtral-8x7b"])
def test_more_seconds_always_buy_bytes(name: str) -> None:
    _, found = options(name)
    seconds = [one.recompute_s for one in found]
    held = [one.saved_bytes for one in found]
    assert seconds == sorted(set(seconds))
    assert held == sorted(set(held), reverse=True)
    assert found[0].recompute_s == 0
    assert found[-1].retention.recomputed == {EVERYTHING}


@pytest.mark.parametrize("name", ["gpt-13b", "llama3-70b", "mixtral-8x7b"])
def test_what_runs_again_can_read_what_it_needs(name: str) -> None:
    block, found = options(name)
    kept = {item.name for one in block.operators for item in one.saves}
    makers = {one.output.name: one for one in block.operators}
    presets = [preset(one, block).recomputed for one in PRESETS]
    for option in found:
        again = option.retention.recomputed
        if again in presets:
            continue
        for one in block.operators:
            if not remade(one) & again:
                continue
            for item in one.inputs:
                at_hand = item.name not in makers or item.name in kept - again
                assert at_hand or remade(makers[item.name]) & again


def test_the_cheap_op_rule_comes_out_for_llama() -> None:
    """Yuan et al., ATC 2024: norms and the activation function, and no product."""
    block, found = options("llama3-70b")
    cheap = preset("cheap-ops", block).recomputed
    (rule,) = [one for one in found if one.retention.recomputed == cheap]
    full = found[-1]
    everything, rest = found[0].saved_bytes, rule.saved_bytes
    assert rule.recompute_s < 0.1 * full.recompute_s
    assert everything - rest > 0.3 * (everything - full.saved_bytes)
    cheaper = [one for one in found if one.recompute_s < rule.recompute_s]
    assert all(one.retention.recomputed <= cheap for one in cheaper)


def test_no_preset_beats_the_menu() -> None:
    block, found = options("gpt-13b")
    for name in PRESETS:
        alone = options("gpt-13b", words=frozenset({"none", "selective", "full"}))[1]
        again = preset(name, block).recomputed
        for one in alone:
            if one.retention.recomputed == again:
                assert any(
                    other.recompute_s <= one.recompute_s
                    and other.saved_bytes <= one.saved_bytes
                    for other in found
                )


def test_words_leave_out_what_is_not_allowed() -> None:
    _, found = options("gpt-13b", words=frozenset({"none", "selective", "full"}))
    assert {one.retention.recomputed for one in found} == {
        frozenset[str](),
        frozenset({CORE}),
        frozenset({EVERYTHING}),
    }


def test_what_is_offloaded_is_not_kept() -> None:
    _, here = options("gpt-13b")
    _, away = options("gpt-13b", Offload(activations=0.5))
    assert away[0].saved_bytes == pytest.approx(here[0].saved_bytes / 2)
    assert away[-1].saved_bytes == pytest.approx(here[-1].saved_bytes / 2)


def test_neighbours_may_be_joined_where_that_is_allowed() -> None:
    block, alone = options("gpt-13b")
    _, found = options("gpt-13b", neighbours=10)
    runs = found[len(alone) :]
    assert [one.joined for one in runs] == lengths(10) == [2, 3, 4, 5, 10]
    full = alone[-1]
    assert block.entry is not None
    for one in runs:
        assert (one.recompute_s, one.saved_bytes) == (
            full.recompute_s,
            full.saved_bytes,
        )
        assert one.inside is not None
        assert one.inside.recomputed == {EVERYTHING, block.entry.name}
        assert one.inside_s >= one.recompute_s
        assert one.inside_bytes == pytest.approx(alone[0].saved_bytes)
    words = frozenset(("none", "full"))
    assert all(one.joined == 1 for one in options("gpt-13b", NOTHING, words, 10)[1])


def test_joined_layers_hold_the_weights_that_are_gathered_for_them() -> None:
    _, bare = options("gpt-13b", neighbours=10)
    _, held = options("gpt-13b", neighbours=10, gathered_bytes=1e9)
    for one, other in zip(bare, held, strict=True):
        more = other.needs_bytes(10) - one.needs_bytes(10)
        assert more == pytest.approx((one.joined - 1) * 1e9)


@pytest.mark.parametrize("layers", [2, 7, 10, 40, 126])
def test_the_shortest_run_for_each_number_of_inputs_is_there(layers: int) -> None:
    runs = lengths(layers)
    assert {-(-layers // one) for one in runs} == {
        -(-layers // one) for one in range(2, layers + 1)
    }
    assert len(runs) <= 2 * layers**0.5 + 2
