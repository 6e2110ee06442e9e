"""Laws of fine-tuning by adapters: no more work or memory than training all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.strategy import Columns, Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.flops import model_flops
from costmodel.stages.layout_cost import LayoutPricer
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.lora import ATTENTION, Adapters
from tests.oracles.bounds import step_time_bound_s

CLUSTER = cluster("dgx-h100")
ON = machine(CLUSTER)
SPEC = model("llama2-7b").spec
FULL = Job(model="llama2-7b", spec=SPEC, seq_len=4096, global_batch=32)
TUNED = replace(FULL, adapters=Adapters(rank=32))
ATTENTION_ONLY = replace(FULL, adapters=Adapters(rank=16, targets=ATTENTION))


@st.composite
def choices(draw: st.DrawFn) -> Uniform:
    tp = draw(st.sampled_from((1, 2, 4)))
    choice = Uniform(
        tp=tp,
        pp=draw(st.sampled_from((1, 2, 4))),
        dp=draw(st.sampled_from((1, 2, 4))),
        cp=draw(st.sampled_from((1, 2))),
        zero=draw(st.integers(0, 3)),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        gradient_format=draw(st.sampled_from(("fp32", "bf16"))),
    )
    if choice.zero:
        choice = replace(choice, zero_group=choice.dp)
    assume(not list(violations(choice, FULL, CLUSTER)))
    return choice


def estimated(job: Job, choice: Uniform) -> Estimate:
    return estimate(job, CLUSTER, spell_out(choice, job.graph, job.global_batch), on=ON)


@given(choices())
def test_adapters_cost_no_more_than_training_everything(choice: Uniform) -> None:
    """Adapters on every layer write each product's output three times more: beside
    tensor-parallel ones, or recomputed, that can outweigh a third of the products."""
    full, tuned = estimated(FULL, choice), estimated(ATTENTION_ONLY, choice)
    assert tuned.step_time_s <= full.step_time_s
    assert estimated(TUNED, choice).peak_memory_bytes <= full.peak_memory_bytes
    assert tuned.peak_memory_bytes <= full.peak_memory_bytes
    assert sum(tuned.breakdown_s.values()) == pytest.approx(tuned.step_time_s)


@given(choices(), st.sampled_from((8, 16, 64)))
def test_a_higher_rank_never_costs_less(choice: Uniform, rank: int) -> None:
    low = estimated(replace(FULL, adapters=Adapters(rank=rank)), choice)
    high = estimated(replace(FULL, adapters=Adapters(rank=2 * rank)), choice)
    assert low.step_time_s <= high.step_time_s
    assert low.peak_memory_bytes <= high.peak_memory_bytes


@given(choices())
def test_columns_equal_the_closed_form_with_adapters_too(choice: Uniform) -> None:
    prices = price(Columns.of([choice]), TUNED, ON)
    layout = spell_out(choice, TUNED.graph, TUNED.global_batch)
    column_s = float(prices.step_time_s[0])
    assert column_s == pytest.approx(step_time_bound_s(TUNED, layout, ON), rel=1e-12)
    found = estimated(TUNED, choice)
    assert column_s <= found.step_time_s * (1 + 1e-12)
    assert float(prices.needed_bytes[0]) == pytest.approx(
        found.peak_needed_bytes, rel=0.02
    )


def test_what_is_trained_and_what_is_frozen() -> None:
    """r · (in + out) of each product of a layer; the model as it was."""
    layout = spell_out(Uniform(zero=0), TUNED.graph, TUNED.global_batch)
    (stage,) = LayoutPricer(job=TUNED, layout=layout, machine=ON).stages()
    hidden, ffn = 4096, 11008
    widths = (hidden + 3 * hidden) + 2 * hidden + (hidden + 2 * ffn) + (ffn + hidden)
    assert float(stage.parameters) == 32 * 32 * widths
    (whole,) = LayoutPricer(
        job=FULL,
        layout=spell_out(Uniform(zero=0), FULL.graph, FULL.global_batch),
        machine=ON,
    ).stages()
    assert float(stage.frozen_parameters) == float(whole.parameters)
    assert float(whole.frozen_parameters) == 0


def test_frozen_weights_are_kept_in_16_bits_and_nothing_else() -> None:
    choice = Uniform(zero=0, recompute="full")
    (memory,) = estimated(TUNED, choice).memory
    layout = spell_out(choice, TUNED.graph, TUNED.global_batch)
    (stage,) = LayoutPricer(job=TUNED, layout=layout, machine=ON).stages()
    trained, frozen = float(stage.parameters), float(stage.frozen_parameters)
    assert float(memory.parameters) == 2 * trained + 2 * frozen
    assert float(memory.gradients) == 4 * trained
    assert float(memory.optimizer) == 12 * trained


def test_fine_tuning_takes_two_thirds_of_the_flops() -> None:
    """Of the products; attention is the same (NeMo's tables count 2/3)."""
    score = 3 * 4 * FULL.tokens * 4096 * 32 * 4096
    products = model_flops(FULL) - score
    thin = model_flops(replace(FULL, adapters=Adapters(rank=1))) - score
    assert thin == pytest.approx(products * 2 / 3, rel=1e-3)
