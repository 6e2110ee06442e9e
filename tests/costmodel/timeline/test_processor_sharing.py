"""`costmodel.timeline.processor_sharing`: what takes how long where ranks are more
than their cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.simulation.estimator import estimate
from costmodel.stages.pipeline_p2p import Sender, boundary
from costmodel.timeline.timeline import simulate
from profiles.hardware.precisions import precision
from profiles.samples.table import Samples
from tests.support.pipelines import Pipeline, costs_of, pipelines, plain_costs
from tests.support.sampled import collective_key, job, local, sample, samples

any_pipeline = pipelines()


@given(st.data(), any_pipeline, st.sampled_from([1.5, 2.0, 8.0]))
def test_messages_keep_their_time_where_others_wait(
    data: st.DataObject, pipeline: Pipeline, turns: float
) -> None:
    """Passes of nothing but messages take as long as with a core for each rank."""
    costs = data.draw(costs_of(pipeline, turns=turns))
    free = np.zeros(pipeline.stages)
    costs = replace(costs, send_forward_s=free, send_backward_s=free)
    waiting = simulate(*pipeline, replace(costs, messages=1.0))
    alone = simulate(*pipeline, replace(costs, turns=1.0, messages=0.0))
    np.testing.assert_allclose(waiting.end_s, alone.end_s, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("messages", "seconds"),
    # Two ranks, one core, one micro-batch: a forward each of 1 s, a backward of 2 s,
    # as priced while both compute; only one ever does.
    [(0.0, 3.0), (0.5, 4.5), (1.0, 6.0)],
)
def test_a_lone_rank_computes_faster_and_waits_as_long(
    messages: float, seconds: float
) -> None:
    pipeline = Pipeline("gpipe", 2, 1, 1)
    costs = plain_costs(pipeline, overlap_reduce=False, turns=2.0, messages=messages)
    assert simulate(*pipeline, costs).makespan_s == pytest.approx(seconds)


def _on_cores(cores: int) -> Machine:
    """Four ranks: a message between two takes 1 ms with nobody else about, a step of a
    ring 4 ms."""
    sent, shifted = (
        collective_key(name, 2, 2**10, groups=2) for name in ("send", "shift")
    )
    taken = {sent: sample(1e-3), shifted: sample(4e-3)}
    about = {"cores": str(cores), "threads": "1"}
    known = Samples(collectives=taken, machine=about)
    return machine(local(4), samples=known).running(4)


@pytest.mark.parametrize(("cores", "seconds"), [(4, 1e-3), (2, 4e-3)])
def test_a_hop_is_a_step_of_a_ring_where_ranks_take_turns(
    cores: int, seconds: float
) -> None:
    found = boundary(
        job(),
        _on_cores(cores),
        precision("fp32"),
        Sender(
            tp=np.asarray(1),
            cp=np.asarray(1),
            ranks=np.asarray(1),
            micro_batch=np.asarray(1),
            sequence_parallel=np.asarray(False),
        ),
        far=np.asarray(False),
    )
    each = found.seconds / (256 * 256 * 4 / 2**10)  # beyond the samples, by bytes
    assert float(each) == pytest.approx(seconds)


def test_an_estimate_knows_what_of_its_passes_is_messages() -> None:
    asked = job()
    where = machine(local(4), samples=samples(asked, cores=2)).running(4)

    def share(choice: Uniform) -> float:
        layout = spell_out(choice, asked.graph, asked.global_batch)
        found = estimate(asked, where.cluster, layout, on=where)
        costs = found.timeline.costs
        passes_s = found.breakdown_s["compute"] + found.breakdown_s["tensor_comm"]
        if choice.pp == 1:
            of_messages = found.breakdown_s["tensor_comm"] / passes_s
            assert costs.messages == pytest.approx(of_messages, rel=1e-3)
        return costs.messages

    assert share(Uniform(dp=4, precision="fp32")) == 0.0
    split = share(Uniform(tp=2, dp=2, precision="fp32"))
    assert split > 0.0
    assert share(Uniform(tp=2, pp=2, precision="fp32")) > split  # and sends
