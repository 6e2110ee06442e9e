"""Dynamic tensor rematerialization: the paper's linear networks, traces of layouts."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.simulation.dtr import (
    HEURISTICS,
    Step,
    chain,
    compared,
    least_budget,
    run,
)
from profiles.errors import InvalidSpec
from tests.support.commanded import answered, refused
from tests.support.rows import Obtained

ASKED = ("--model", "gpt-1.3b", "--gpus", "8", "--global-batch", "64")


@pytest.mark.row(
    "H2",
    "operators over 2N in 2⌈√N⌉ tensors, N = 64, 256, 1024, 2048",
    expected="1.39, 1.45, 1.48, 1.52",
    evidence="computed",
)
@pytest.mark.parametrize(
    ("layers", "overhead"), [(64, 1.39), (256, 1.45), (1024, 1.48), (2048, 1.52)]
)
def test_a_linear_network_in_a_root_of_its_memory(
    layers: int, overhead: float, obtained: Obtained
) -> None:
    """Unit costs in 2⌈√N⌉ tensors: operators over 2N, from another simulation."""
    found = run(chain(layers), least_budget(layers))
    obtained(f"{found.cost / (2 * layers):.2f}")
    assert found.cost / (2 * layers) == pytest.approx(overhead, abs=0.005)
    assert found.peak <= least_budget(layers)


@pytest.mark.parametrize("heuristic", ["h-dtr", "h-eq"])
def test_operators_stay_linear(heuristic: str) -> None:
    """O(N) operators (Kirisame et al., theorem 3.1): at most twice 2N."""
    for layers in (16, 100, 500, 1500, 4096):
        found = run(chain(layers), least_budget(layers), heuristic)
        assert found.overhead <= 2


def test_without_costs_of_neighbours_they_do_not() -> None:
    """What knows the neighbourhood beats what does not, more the longer the network."""
    runs = dict(compared(chain(64), least_budget(64)))
    found = {name: one.overhead for name, one in runs.items() if one is not None}
    assert set(found) == set(HEURISTICS)
    assert min(found, key=lambda name: found[name]) in ("h-dtr", "h-eq")
    gaps = []
    for layers in (64, 256, 1024):
        lru, own = (
            run(chain(layers), least_budget(layers), name) for name in ("lru", "h-dtr")
        )
        gaps.append(lru.overhead / own.overhead)
    assert gaps == sorted(gaps)
    assert gaps[-1] > 3


graphs = st.lists(
    st.tuples(
        st.sets(st.integers(1, 6), max_size=3), st.floats(0.1, 9), st.integers(1, 5)
    ),
    min_size=2,
    max_size=24,
)


@given(graphs, st.sampled_from(HEURISTICS), st.integers(12, 60))
def test_any_graph_runs_within_its_budget(
    some: list[tuple[set[int], float, int]], heuristic: str, budget: int
) -> None:
    steps = [
        Step(
            inputs=tuple(sorted(n - back for back in backs if back <= n)),
            cost=cost,
            size=size,
        )
        for n, (backs, cost, size) in enumerate(some)
    ]
    free = run(steps, inf, heuristic)
    assert free.again == 0
    try:
        found = run(steps, budget, heuristic)
    except InvalidSpec:
        return
    assert found.peak <= budget
    assert found.cost - found.again == pytest.approx(free.cost)
    if budget >= free.peak:
        assert found.again == 0


def test_a_budget_for_less_than_an_operator_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="does not hold one operator"):
        run(chain(4), 1)
    with pytest.raises(InvalidSpec, match="is not one of h-dtr"):
        run(chain(4), 9, "fifo")


def test_the_command_compares_heuristics(capsys: pytest.CaptureFixture[str]) -> None:
    """A layer is remade in less than a third of a step's time: its forward."""
    shares = {}
    for share in ("1", "0.6", "0.3"):
        found = answered(capsys, *ASKED, "--micro-batch", "4", "--compare-dtr", share)
        shares[share] = found["dtr"]["overhead"]
        assert set(shares[share]) == set(HEURISTICS)
    assert set(shares["1"].values()) == {1.0}
    assert 1 < shares["0.6"]["h-dtr"] < shares["0.3"]["h-dtr"] < 4 / 3 + 0.01
    assert shares["0.3"]["h-dtr"] < shares["0.3"]["random"]
    assert "--compare-dtr" in refused(capsys, *ASKED, "--compare-dtr", "2")
