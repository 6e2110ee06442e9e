"""With measured samples too: columns, closed form and simulation are one price."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.batched.pricing import price
from costmodel.layout.strategy import Columns, Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.sample_lookup import Fit, terms
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.support.legality import violations
from profiles.samples.table import Samples
from tests.oracles.bounds import step_time_bound_s
from tests.support.sampled import job, local, on

RANKS = 4
GPU = "hopper"  # an architecture that hides communication behind compute
shares = st.sampled_from((1.0, 0.6, 0.2))


@st.composite
def choices(draw: st.DrawFn) -> Uniform:
    tp, pp, dp = draw(
        st.sampled_from(
            [
                (tp, pp, dp)
                for tp in (1, 2, 4)
                for pp in (1, 2, 4)
                for dp in (1, 2, 4)
                if tp * pp * dp <= RANKS
            ]
        )
    )
    zero = draw(st.integers(0, 3)) if dp > 1 else 0
    virtual = draw(st.sampled_from((1, 1, 2))) if pp > 1 else 1
    choice = Uniform(
        tp=tp,
        pp=pp,
        dp=dp,
        micro_batch=draw(st.sampled_from((1, 2, 4, 8))),
        schedule="interleaved"
        if virtual > 1
        else draw(st.sampled_from(("1f1b", "gpipe"))),
        virtual_stages=virtual,
        zero=zero,
        zero_group=dp if zero else 1,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        precision="fp32",
    )
    assume(not list(violations(choice, job(), local(RANKS))))
    return choice


def simulated(choice: Uniform, where: Machine) -> Estimate:
    layout = spell_out(choice, job().graph, job().global_batch)
    return estimate(job(), where.cluster, layout, on=where)


@given(choice=choices(), share=shares, cores=st.sampled_from((4, 2, 1)))
def test_columns_equal_the_closed_form_and_bound_the_simulation(
    choice: Uniform, share: float, cores: int
) -> None:
    where = on("gpt-tiny", RANKS, share, cores)
    column_s = float(price(Columns.of([choice]), job(), where).step_time_s[0])
    layout = spell_out(choice, job().graph, job().global_batch)
    assert column_s == pytest.approx(step_time_bound_s(job(), layout, where), rel=1e-12)
    assert column_s <= simulated(choice, where).step_time_s * (1 + 1e-12)


@cache
def hiding() -> Machine:
    """The same samples, as if of a device that hides communication."""
    found = on("gpt-tiny", RANKS).measured
    assert found is not None
    return machine(local(RANKS, GPU), samples=found.samples)


@given(choice=choices())
@settings(max_examples=25)
def test_the_same_where_communication_is_hidden(choice: Uniform) -> None:
    where = hiding()
    column_s = float(price(Columns.of([choice]), job(), where).step_time_s[0])
    layout = spell_out(choice, job().graph, job().global_batch)
    assert column_s == pytest.approx(step_time_bound_s(job(), layout, where), rel=1e-12)
    assert column_s <= simulated(choice, where).step_time_s * (1 + 1e-12)


@given(rows=st.lists(choices(), min_size=2, max_size=4), share=shares)
@settings(max_examples=20)
def test_a_row_does_not_depend_on_its_neighbours(
    rows: list[Uniform], share: float
) -> None:
    where = on("gpt-tiny", RANKS, share)
    together = price(Columns.of(rows), job(), where).step_time_s
    alone = [price(Columns.of([row]), job(), where).step_time_s[0] for row in rows]
    assert together == pytest.approx(alone, rel=1e-12)


@given(choice=choices(), share=shares, cores=st.sampled_from((4, 2, 1)))
def test_shares_and_breakdown_account_for_everything(
    choice: Uniform, share: float, cores: int
) -> None:
    found = simulated(choice, on("gpt-tiny", RANKS, share, cores))
    assert found.price_sources is not None
    parts = found.price_sources.document()
    assert sum(parts.values()) == pytest.approx(1.0, abs=1e-9)
    assert min(parts.values()) >= 0.0
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(found.breakdown_s.values()) > -1e-9


@given(choice=choices())
def test_without_a_sample_the_price_is_the_roofline(choice: Uniform) -> None:
    cluster = local(RANKS, GPU)
    plain, empty = machine(cluster), machine(cluster, samples=Samples())
    found = simulated(choice, empty)
    assert found.step_time_s == simulated(choice, plain).step_time_s
    assert found.price_sources is not None
    assert found.price_sources.roofline == 1.0


dims = st.integers(1, 4096)


@given(
    shapes=st.lists(st.tuples(dims, dims, dims), min_size=1, max_size=12, unique=True),
    data=st.data(),
)
def test_a_fit_goes_through_its_samples(
    shapes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    table = np.array(shapes)
    work = terms("matmul", table)[:, 0]
    off = data.draw(
        st.lists(st.floats(0.5, 2.0), min_size=len(shapes), max_size=len(shapes))
    )
    seconds = (1e-5 + work * 1e-11) * np.array(off)
    fit = Fit(kind="matmul", shapes=table, seconds=seconds)
    assert fit.at(table) == pytest.approx(seconds, rel=1e-6)
    assert (fit.base >= 0).all()
    assert fit.base.any()
