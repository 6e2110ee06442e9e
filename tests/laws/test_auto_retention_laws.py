"""`--recompute auto` is never slower than a preset that fits in the same memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.layout.offload import Offload
from costmodel.layout.retention import AUTO
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.remat_auto import fitted
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

CLUSTER = cluster("dgx-a100-80gb")
JOB = Job(model="gpt-13b", spec=model("gpt-13b").spec, seq_len=2048, global_batch=64)
ON = machine(CLUSTER)
PRESETS = ("none", "selective", "cheap-ops", "full", "sqrt")
NEARLY = 1 + 1e-9


@st.composite
def choices(draw: st.DrawFn) -> Uniform:
    dp = draw(st.sampled_from((1, 2)))
    tp = draw(st.sampled_from((1, 4)))
    choice = Uniform(
        tp=tp,
        pp=draw(st.sampled_from((1, 2, 4))),
        dp=dp,
        micro_batch=draw(st.sampled_from((1, 2, 4))),
        schedule=draw(st.sampled_from(("1f1b", "gpipe"))),
        sequence_parallel=tp > 1,
        zero=draw(st.integers(0, 3)),
    )
    choice = replace(choice, zero_group=dp if choice.zero else 1)
    assume(not list(violations(choice, JOB, CLUSTER)))
    return choice


def priced(choice: Uniform) -> Estimate:
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    return estimate(JOB, CLUSTER, layout, on=ON)


@settings(max_examples=25)
@given(
    choice=choices(),
    name=st.sampled_from(PRESETS),
    layers=st.sampled_from((None, 1, 3)),
    share=st.floats(0, 1),
)
def test_auto_is_never_slower_than_a_preset_that_fits(
    choice: Uniform, name: str, layers: int | None, share: float
) -> None:
    kept = priced(choice)
    other = priced(replace(choice, recompute=name, recompute_layers=layers))
    spare = max(kept.peak_needed_bytes - other.peak_needed_bytes, 0.0)
    limit = other.peak_needed_bytes * NEARLY + share * spare
    auto = replace(choice, recompute=AUTO)
    found = fitted(auto, JOB, ON, limit, executable=False)
    assert found.peak_needed_bytes <= limit
    assert kept.step_time_s <= found.step_time_s * NEARLY
    assert found.step_time_s <= other.step_time_s * NEARLY


@settings(max_examples=25)
@given(
    choice=choices(),
    name=st.sampled_from(PRESETS),
    away=st.sampled_from((0.0, 0.05, 0.25, 0.6, 1.0)),
    share=st.floats(0, 1),
)
def test_where_activations_may_leave_no_preset_with_a_share_away_is_faster(
    choice: Uniform, name: str, away: float, share: float
) -> None:
    kept = priced(choice)
    other = priced(replace(choice, recompute=name, offload=Offload(activations=away)))
    spare = max(kept.peak_needed_bytes - other.peak_needed_bytes, 0.0)
    limit = other.peak_needed_bytes * NEARLY + share * spare
    auto = replace(choice, recompute=AUTO)
    found = fitted(auto, JOB, ON, limit, executable=False, leaves_to="cpu")
    here = fitted(auto, JOB, ON, limit, executable=False)
    assert found.peak_needed_bytes <= limit
    assert kept.step_time_s <= found.step_time_s * NEARLY
    assert found.step_time_s <= other.step_time_s * NEARLY
    if here.peak_needed_bytes <= limit:
        assert found.step_time_s <= here.step_time_s


@settings(max_examples=10)
@given(choice=choices(), share=st.floats(0, 1))
def test_the_first_stage_makes_again_at_least_as_much_as_the_last(
    choice: Uniform, share: float
) -> None:
    assume(choice.pp > 1 and choice.schedule == "1f1b")
    kept, full = priced(choice), priced(replace(choice, recompute="full"))
    low, high = full.peak_needed_bytes, kept.peak_needed_bytes
    assume(low < high)
    limit = low * NEARLY + share * (high - low)
    found = fitted(replace(choice, recompute=AUTO), JOB, ON, limit, executable=False)
    again = [
        sum(bool(plan.retention.recomputed) for plan in stage.plans)
        for stage in found.layout.stages
    ]
    middle = again[1:-1] or again[:1]
    assert again[0] >= min(middle)
