"""Support: a choice, its layout and the planner's local space never disagree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.layout.offload import NOTHING, Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.support.features import Combination, facts
from costmodel.support.legality import require_legal_layout, violations
from costmodel.support.support_table import refusals, require_supported, support
from planner.problem.problem import Problem
from planner.problem.space import Space
from profiles.hardware.precisions import GRADIENT_FORMATS, PRECISIONS
from profiles.models.job import OPTIMIZERS, Job
from profiles.models.spec import DecoderSpec
from tests.support.fact_settings import MOE, SPEC
from tests.support.problems import all_pins, local, problem

AWAY = (
    *(NOTHING, NOTHING, NOTHING),
    Offload(optimizer=True),
    Offload(parameters=True),
    Offload(optimizer=True, parameters=True),
    Offload(optimizer=True, tier="nvme"),
)
SOME = 12  # candidates spelled out of each space


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    spec = replace(
        SPEC,
        kv_heads=draw(st.sampled_from((1, 2, 4))),
        vocab=draw(st.sampled_from((64, 65))),
        position=draw(st.sampled_from(("learned", "rotary", "alibi", "none"))),
        norm=draw(st.sampled_from(("layernorm", "rmsnorm"))),
        gated_mlp=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        dropout=draw(st.sampled_from((0.0, 0.1))),
        window=draw(st.sampled_from((None, 8, 16))),
        moe=draw(st.sampled_from((None, None, MOE))),
    )
    return Job(
        model="small",
        spec=spec,
        seq_len=16,
        global_batch=8,
        optimizer=draw(st.sampled_from(sorted(OPTIMIZERS))),
    )


@st.composite
def choices(draw: st.DrawFn) -> Uniform:
    dp, virtual = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 1, 2)))
    tp = draw(st.sampled_from((1, 2, 4)))
    zero = draw(st.integers(0, 3))
    groups = [group for group in (1, 2, 4) if dp % group == 0]
    again = ("none", "selective", "full", "sqrt", "cheap-ops", "activation")
    return Uniform(
        tp=tp,
        pp=2 if virtual > 1 else draw(st.sampled_from((1, 2))),
        dp=dp,
        cp=draw(st.sampled_from((1, 1, 2))),
        schedule=(
            "interleaved" if virtual > 1 else draw(st.sampled_from(("1f1b", "gpipe")))
        ),
        virtual_stages=virtual,
        zero=zero,
        zero_group=draw(st.sampled_from(groups)) if zero else 1,
        cp_kind=draw(st.sampled_from(("ring", "all-gather", "ulysses"))),
        sequence_parallel=draw(st.booleans()),
        recompute=draw(st.sampled_from(again)),
        recompute_layers=draw(st.sampled_from((None, 0, 1, 3))),
        flash_attention=draw(st.booleans()),
        precision=draw(st.sampled_from(PRECISIONS)),
        gradient_format=draw(st.sampled_from(GRADIENT_FORMATS)),
        offload=draw(st.sampled_from(AWAY)),
    )


@given(choice=choices(), asked=jobs())
def test_a_choice_and_its_layout_have_the_same_facts(
    choice: Uniform, asked: Job
) -> None:
    layout = spell_out(choice, asked.graph, asked.global_batch)
    ours = facts(Combination.of_choice(choice, asked), asked)
    theirs = facts(Combination.of_layout(layout), asked)
    assert {name: fact.value for name, fact in ours.items()} == {
        name: fact.value for name, fact in theirs.items()
    }
    assert [(one.mechanism, one.answer) for one in support(choice, asked)] == [
        (one.mechanism, one.answer) for one in support(layout, asked)
    ]


@st.composite
def local_problems(draw: st.DrawFn) -> Problem:
    posed = problem(
        draw(st.sampled_from(("gpt-tiny", "gpt-mini"))),
        draw(st.integers(1, 16)),
        global_batch=draw(st.sampled_from((4, 6, 8, 12, 48))),
        where=local(),
        pins=draw(all_pins()),
        executable=True,
    )
    spec = posed.job.spec
    assert isinstance(spec, DecoderSpec)
    changed = replace(
        spec,
        kv_heads=draw(st.sampled_from((2, 8))),
        vocab=draw(st.sampled_from((511, 512))),
        dropout=draw(st.sampled_from((0.0, 0.0, 0.1))),
    )
    return replace(posed, job=replace(posed.job, spec=changed))


@given(posed=local_problems(), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_every_candidate_of_the_local_space_is_carried_out(
    posed: Problem, seed: int
) -> None:
    space = Space(problem=posed)
    leaves = space.leaves(space.branches)
    assume(len(leaves))
    order = np.random.default_rng(seed).permutation(len(leaves))
    for row in order[:SOME].tolist():
        choice = space.choice(leaves, row)
        layout = spell_out(choice, posed.job.graph, posed.job.global_batch)
        assert not list(violations(choice, posed.job, posed.machine.cluster))
        require_legal_layout(layout, posed.job, posed.machine.cluster)
        require_supported(layout, posed.job)


@given(posed=local_problems())
@settings(max_examples=25)
def test_nothing_that_is_carried_out_is_left_out(posed: Problem) -> None:
    whole = Space(problem=replace(posed, executable=False))
    assume(whole.branches["leaves"].sum() <= 3000)
    space = Space(problem=posed)
    found, every = (one.leaves(one.branches) for one in (space, whole))
    legal = [whole.choice(every, row) for row in range(len(every))]
    carried = [one for one in legal if not refusals(one, posed.job)]
    assert [space.choice(found, row) for row in range(len(found))] == carried
