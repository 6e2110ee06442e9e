"""`runtime.train.stale`: late gradients are as late as is said, on gloo ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from costmodel.schedule.schedules import versions_held
from runtime.train.stale import Late
from tests.runtime import stale_cases as cases
from tests.runtime.ranks import on_ranks
from tests.support.rows import Obtained
from tests.support.training_cases import job

RUNS = (5, 3)  # steps from a fill to its drain
CASES = [
    ("async-1f1b", 2, 1),
    ("async-1f1b", 4, 2),
    ("2bw", 2, 2),
    ("2bw", 4, 4),
    ("pipemare", 2, 1),
    ("pipemare", 4, 3),
    ("pb", 4, 1),
]


def apart(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Relative L2 distance of all parameters together."""
    assert found.keys() == wanted.keys()
    gaps = torch.stack([(found[name] - wanted[name]).norm() for name in wanted])
    sizes = torch.stack([wanted[name].norm() for name in wanted])
    return float(gaps.norm() / sizes.norm())


@pytest.mark.row(
    "E6",
    "parameters of 2 and 4 ranks, of W - lr grad f(W of one update before)",
    expected="1e-6",
    evidence="computed",
)
@pytest.mark.parametrize(("schedule", "pp", "batches"), CASES)
def test_ranks_train_as_one_process_with_the_same_delays(
    schedule: str, pp: int, batches: int, obtained: Obtained
) -> None:
    layout, asked = cases.layout_of(schedule, pp, batches), cases.untied(batches)
    ranks: list[dict[str, Any]] = on_ranks(
        pp, cases.trained, layout, RUNS, cases.SGD, asked
    )
    wanted = cases.alone(layout, asked, RUNS)
    for rank in ranks:
        assert rank["losses"] == pytest.approx(wanted["losses"], rel=1e-6)
        assert rank["in_flight"] == 0
    pairs = zip(ranks, wanted["parameters"], strict=True)
    gap = max(apart(rank["parameters"], other) for rank, other in pairs)
    obtained(f"{schedule} {pp}: {gap:.0e}")
    assert gap < 1e-6
    most = [max(rank["held"]) for rank in ranks]
    assert most == versions_held(schedule, pp, batches).tolist()


def agrees(
    schedule: str, batches: int, late: Late, rule_of: Any, settings: Any
) -> None:
    """Two ranks with a remedy, and one process with its formulas."""
    layout, asked = cases.layout_of(schedule, 2, batches), cases.untied(batches)
    ranks = on_ranks(2, cases.trained, layout, (8,), settings, asked, late)
    wanted = cases.alone(layout, asked, (8,), rule_of)
    assert ranks[0]["losses"] == pytest.approx(wanted["losses"], rel=1e-6)
    for rank, parameters in zip(ranks, wanted["parameters"], strict=True):
        assert apart(rank["parameters"], parameters) < 1e-6


def test_spikes_are_compensated_and_weights_predicted_on_ranks() -> None:
    late = Late(remedy="spike+predict")
    delays = (2, 0)
    agrees("pb", 1, late, lambda rank: cases.Compensated(delays[rank]), cases.MOMENTUM)


def test_rates_are_annealed_and_discrepancies_corrected_on_ranks() -> None:
    """Three micro-batches a step, of which the first rank is two ahead."""
    late, tau = (2 / 3, 0.0), (3 / 3, 1 / 3)
    agrees(
        "pipemare",
        3,
        Late(remedy="t1+t2", steps=4),
        lambda rank: cases.Corrected(late[rank], tau[rank], 4),
        cases.SGD,
    )


def test_rates_begin_slower_where_gradients_are_later() -> None:
    late, tau = (2.0, 0.0), (3.0, 1.0)
    agrees(
        "pipemare",
        1,
        Late(remedy="t1+t2", steps=4),
        lambda rank: cases.Corrected(late[rank], tau[rank], 4),
        cases.SGD,
    )


def test_late_gradients_learn_what_gradients_in_time_do() -> None:
    """On the synthetic chain, in 40 steps of four micro-batches."""
    names = ("1f1b", "async-1f1b", "2bw", "pipemare", "pb")
    layouts = [cases.layout_of(name, 2, 4) for name in names]
    plain, *others = on_ranks(2, cases.learned, layouts, 40)[0]
    assert plain[-1] < plain[0] - 0.5
    apart_by = dict(zip(names[1:], others, strict=True))
    for name, losses in apart_by.items():
        assert losses[0] == pytest.approx(plain[0])
        assert losses[1:] != plain[1:], name
        assert losses[-1] < losses[0] - 0.3, name
        assert losses[-1] < plain[-1] + 0.3, name


def test_a_table_at_both_ends_stays_one_table() -> None:
    """Its two copies are updated with the sum of their gradients."""
    asked = replace(job("gpt"), global_batch=3)
    layout = cases.layout_of("2bw", 2, 3)
    first, last = on_ranks(2, cases.trained, layout, (6,), cases.SGD, asked)
    table = first["parameters"]["embedding.table.weight"]
    torch.testing.assert_close(table, last["parameters"]["head.weight"])


def test_replicas_of_stages_stay_equal() -> None:
    """Two stages of two ranks, each of which has micro-batches of its own."""
    layout = cases.layout_of("async-1f1b", 2, 2, dp=2)
    ranks = on_ranks(4, cases.trained, layout, (5,), cases.SGD, cases.untied(4))
    for one, other in ((0, 1), (2, 3)):
        assert apart(ranks[one]["parameters"], ranks[other]["parameters"]) == 0
    assert len({tuple(rank["losses"]) for rank in ranks}) == 1
