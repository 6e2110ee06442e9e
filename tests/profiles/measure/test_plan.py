"""`profiles.measure.plan`: what a model needs is measured, each once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.measure.plan import (
    COLLECTIVES,
    amid_products,
    exchanges,
    micro_batches,
    operations,
    parameter_sizes,
)
from profiles.measure.session import MOST_FLOPS
from profiles.measure.timing.operands import arena_bytes, flops, held_bytes
from profiles.measure.timing.operator_functions import KINDS
from profiles.measure.timing.tasks import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Operation,
)
from profiles.models.catalog import model
from profiles.models.graph import Kind
from profiles.models.job import Job
from profiles.models.param_count import parameters
from profiles.models.spec import DecoderSpec
from profiles.samples.operator_keys import (
    BESIDE,
    SOON,
    SORTED_AGAIN,
    STEP_KINDS,
    operator_shape,
)
from profiles.units import KiB, MiB
from tests.support.small_jobs import BIASED, DROPPING, GPT, LLAMA, MIXTURE, job

DENSE = {"g": GPT, "l": LLAMA, "d": DROPPING}
SPECS = {**DENSE, "m": MIXTURE, "b": BIASED}
each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
dense = pytest.mark.parametrize("spec", DENSE.values(), ids=DENSE)


def planned(job: Job, *parts: int) -> tuple[Operation, ...]:
    return operations(
        job, parts=parts or (1, 2), precisions=("fp32",), most_tokens=8192
    )


def found(plan: tuple[Operation, ...]) -> set[tuple[str, str, tuple[int, ...]]]:
    return {(one.kind, one.direction, one.shape) for one in plan}


@dense
def test_every_operator_is_measured_whole_and_in_both_halves(spec: DecoderSpec) -> None:
    trained = job(spec)
    names = found(planned(trained))
    for block in trained.graph.distinct():
        cut = {name: size // 2 for name, size in block.extents.items()}
        halves = {**cut, "hidden": spec.hidden, "positions": spec.max_positions}
        for operator in block.operators:
            for batch in (1, 2):
                for extents in (dict(block.extents), halves):
                    kind, shape = operator_shape(
                        operator,
                        block,
                        batch=batch,
                        rows=batch * trained.seq_len,
                        extent=extents.__getitem__,
                    )
                    ways: tuple[str, ...] = (FORWARD, BACKWARD)
                    if operator.kind is Kind.MATMUL:
                        ways = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
                    assert {(kind, way, shape) for way in ways} <= names


@dense
def test_rows_are_cut_where_an_operator_looks_at_one_token(spec: DecoderSpec) -> None:
    names = found(planned(job(spec)))
    assert (spec.norm, FORWARD, (8, spec.hidden)) in names
    assert (spec.norm, FORWARD, (32, spec.hidden)) in names
    assert all(shape[0] != 8 for kind, _, shape in names if kind == "matmul")


@each_spec
def test_each_operation_is_there_once_and_has_a_clock(spec: DecoderSpec) -> None:
    plan = planned(job(spec))
    keys = [(one.kind, one.direction, one.shape, one.precision) for one in plan]
    assert len(set(keys)) == len(keys)
    kinds = {one.kind for one in plan}
    assert kinds <= {*KINDS, *SORTED_AGAIN.values(), *STEP_KINDS, "adamw", "host-copy"}
    assert {"adamw", *STEP_KINDS, "host-copy"} <= kinds


def test_heads_that_do_not_divide_are_not_cut() -> None:
    plan = planned(job(LLAMA), 1, 4)
    attention = {one.shape for one in plan if one.kind == "attention"}
    assert {shape[1:3] for shape in attention} == {(4, 2)}
    assert any(one.shape[-1] == 16 for one in plan if one.kind == "swiglu")


def test_bias_and_norms_are_those_of_the_model() -> None:
    gpt, llama = planned(job(GPT)), planned(job(LLAMA))
    products = {one.shape[1:]: one.variant for one in gpt if one.kind == "matmul"}
    assert products[3 * GPT.hidden, GPT.hidden] == "bias"
    assert products[GPT.vocab, GPT.hidden] == ""
    variants = {one.kind: one.variant for one in llama}
    assert (variants["matmul"], variants["qk-norm"]) == ("", "rmsnorm")
    assert variants["attention"] == "separate"


def test_the_precisions_asked_for_are_measured_and_steps_in_fp32() -> None:
    plan = operations(job(), parts=(1,), precisions=("bf16", "fp32"), most_tokens=8192)
    by_kind = {
        kind: {one.precision for one in plan if one.kind == kind}
        for kind in ("matmul", "gelu", "adamw", "accumulate")
    }
    assert by_kind["matmul"] == by_kind["gelu"] == {"bf16", "fp32"}
    assert by_kind["adamw"] == by_kind["accumulate"] == {"fp32"}


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt-mini", "llama3.2-1b"])
def test_parameter_tensors_are_those_of_the_model(name: str) -> None:
    known = model(name)
    spec = known.spec
    assert isinstance(spec, DecoderSpec)
    trained = Job(model=name, spec=spec, seq_len=16, global_batch=1)
    assert sum(parameter_sizes(trained.graph)) == parameters(spec).total


@given(st.integers(1, 64))
def test_pieces_of_a_step_add_up(global_batch: int) -> None:
    for one in planned(job(global_batch=global_batch), 1, 2, 3):
        if one.kind in ("adamw", *STEP_KINDS):
            assert (sum(one.pieces),) == one.shape
            assert min(one.pieces) >= 1


@given(st.integers(1, 512), st.integers(16, 8192))
def test_micro_batches_divide_and_are_small(batch: int, most_tokens: int) -> None:
    sizes = micro_batches(job(global_batch=batch), most_tokens)
    assert sizes[0] == 1
    assert all(batch % size == 0 for size in sizes)
    assert all(size == 1 or size * 16 <= most_tokens for size in sizes)


@given(st.integers(1, 8))
def test_every_collective_is_measured_for_itself(ranks: int) -> None:
    plan = exchanges(ranks, most_bytes=64 * MiB)
    sizes = {size for size in range(2, ranks + 1) if ranks % size == 0}
    assert {one.ranks for one in plan} == sizes
    for size in sizes:
        of_size = {one.collective for one in plan if one.ranks == size}
        assert of_size == {*COLLECTIVES, *(("send",) if size == 2 else ())}
    assert all(one.ranks * one.groups <= ranks for one in plan)
    assert len(set(plan)) == len(plan)


def test_bytes_go_by_powers_of_four() -> None:
    plan = exchanges(2, most_bytes=64 * MiB)
    sizes = sorted({one.size_bytes for one in plan})
    assert (sizes[0], sizes[-1]) == (KiB, 64 * MiB)
    assert all(more == 4 * less for less, more in pairwise(sizes))


def test_small_messages_are_measured_amid_products_too() -> None:
    plain = exchanges(4, most_bytes=64 * MiB, alone=False)
    amid = list(amid_products(plain))
    assert len({*plain, *amid}) == len(plain) + len(amid)
    assert {replace(one, how="") for one in amid} < set(plain)
    assert max(one.size_bytes for one in amid) <= 4 * MiB
    assert {one.how for one in amid} == {SOON, BESIDE}


def test_what_is_held_is_more_than_the_operands() -> None:
    for one in planned(job()):
        assert held_bytes(one) >= 4 * min(prod(one.shape), one.shape[0])


def test_an_arena_outgrows_the_cache_but_not_the_memory() -> None:
    plan = planned(job())
    roomy = arena_bytes(plan, (), cache_bytes=32 * MiB, most_bytes=2.0**40)
    tight = arena_bytes(plan, (), cache_bytes=32 * MiB, most_bytes=2.0**26)
    assert roomy >= 64 * MiB
    assert 32 * MiB <= tight <= 2.0**29 / 8


def test_products_that_take_long_are_left_out() -> None:
    small, large = (
        Operation(kind="matmul", direction=FORWARD, shape=(size, 1024, 1024))
        for size in (1024, 10**6)
    )
    assert flops(small) < MOST_FLOPS["cpu"] < flops(large)
    heads = Operation(kind="attention", direction=FORWARD, shape=(2, 4, 4, 16, 8))
    assert flops(heads) == 2 * 2 * 4 * 16 * 16 * 8
