"""Keep, make again or offload: the integer program against all closed sets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import numpy as np
import pytest

from costmodel.layout.retention import Action, preset, require_priced
from costmodel.machine.assembly import machine
from costmodel.operators.activation_compression import Packer
from costmodel.operators.degrees import Degrees
from costmodel.simulation.remat_options import remade
from costmodel.stages.block_cost import block_prices
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.job import Job
from tests.support.block_ilp import (
    Answer,
    Question,
    best_retention,
    forward_s,
    packings,
    saved_sizes,
)

SHARES = (0.9, 0.7, 0.5, 0.3)


@cache
def asked(name: str, room: float, link: float = 0.0, flying: float = 4.0) -> Question:
    found = model(name)
    job = Job(model=name, spec=found.spec, seq_len=2048, global_batch=64)
    block, _ = job.graph.runs[0]
    degrees = Degrees(
        tp=np.asarray(8),
        cp=np.asarray(1),
        micro_batch=np.asarray(4),
        seq_len=2048,
        sequence_parallel=True,
    )
    on = machine(cluster("dgx-a100-80gb"))
    prices = block_prices(block, degrees, precision("bf16"), on)
    whole = Question(block=block, prices=prices, room_bytes=0.0)
    return Question(
        block=block,
        prices=prices,
        room_bytes=room * flying * sum(saved_sizes(whole).values()),
        flying=flying,
        link_bytes_per_s=link,
        pass_s=(sum(forward_s(whole).values()), 2 * sum(forward_s(whole).values())),
    )


def solved(question: Question) -> Answer:
    found = best_retention(question)
    assert found is not None
    require_priced(found.retention, question.block)
    return found


def by_all_sets(question: Question) -> float:
    """The least seconds of all closed sets of operators that fit."""
    operators = question.block.operators
    sizes, seconds = saved_sizes(question), forward_s(question)
    place = {one.output.name: at for at, one in enumerate(operators)}
    best = inf
    for run in product((False, True), repeat=len(operators)):
        closed = all(
            run[place[item.name]] or item.name in sizes or not run[at]
            for at, one in enumerate(operators)
            for item in one.inputs
            if item.name in place
        )
        if not closed:
            continue
        again = {
            name for at, one in enumerate(operators) if run[at] for name in remade(one)
        }
        held = sum(
            size * (1.0 if name in again else question.flying)
            for name, size in sizes.items()
        )
        if held <= question.room_bytes * (1 + 1e-9):
            runs = zip(operators, run, strict=True)
            best = min(best, sum(seconds[one.name] for one, there in runs if there))
    return best


@pytest.mark.parametrize("room", SHARES)
def test_without_a_link_it_is_the_best_closed_set(room: float) -> None:
    question = asked("gpt-13b", room)
    assert solved(question).extra_s == pytest.approx(by_all_sets(question))


@pytest.mark.parametrize("room", SHARES)
def test_a_link_never_makes_it_slower(room: float) -> None:
    without = solved(asked("llama3-70b", room)).extra_s
    slow, fast = (
        solved(asked("llama3-70b", room, link)).extra_s for link in (5e9, 5e10)
    )
    assert fast <= slow + 1e-12
    assert slow <= without + 1e-12


@pytest.mark.parametrize("link", [0.0, 5e9, 5e10])
def test_more_room_never_takes_longer(link: float) -> None:
    took = [solved(asked("llama3-70b", room, link)).extra_s for room in SHARES]
    assert took == sorted(took)


def test_the_cheap_op_rule_comes_out_for_llama() -> None:
    question = asked("llama3-70b", 0.8)
    again = solved(question).retention.recomputed
    assert again
    assert again <= preset("cheap-ops", question.block).recomputed


def test_a_fast_link_takes_what_products_would_have_to_make_again() -> None:
    found = solved(asked("llama3-70b", 0.3, 5e10)).retention
    away = {
        name
        for name, one in found.tensors.items()
        if one.action is Action.OFFLOAD and one.ratio > 0.1
    }
    assert away


def packing(room: float, *bits: int) -> Question:
    question = asked("gpt-13b", room)
    on, policy = machine(cluster("dgx-a100-80gb")), precision("bf16")
    return replace(question, packer=Packer.of(on, policy), bits=bits)


@pytest.mark.parametrize("room", SHARES)
def test_compressing_is_never_slower_and_more_ways_neither(room: float) -> None:
    without = solved(asked("gpt-13b", room)).extra_s
    eight = solved(packing(room, 8)).extra_s
    both = solved(packing(room, 8, 2)).extra_s
    assert both <= eight + 1e-12
    assert eight <= without + 1e-12


def test_what_is_compressed_costs_and_holds_what_its_price_says() -> None:
    question = packing(0.4, 4)
    found = solved(question)
    packed = {
        name: one
        for name, one in found.retention.tensors.items()
        if one.action is Action.COMPRESS
    }
    assert packed
    assert all(one.bits == 4 for one in packed.values())
    assert question.packer is not None
    sizes = {name: np.asarray(size) for name, size in saved_sizes(question).items()}
    price = question.packer.packed(sizes, found.retention)
    held = sum(
        size
        for name, size in saved_sizes(question).items()
        if name not in found.retention.recomputed
    )
    saved = held - float(price.saved_bytes)
    assert found.saved_bytes == pytest.approx(saved)
    assert question.flying * saved <= question.room_bytes * (1 + 1e-6)
    costs = [one.extra_s for name in packed for one in packings(question, name)]
    assert found.extra_s >= sum(costs) * (1 - 1e-9)


def test_no_room_is_no_answer() -> None:
    assert best_retention(asked("gpt-13b", 0.0)) is None
