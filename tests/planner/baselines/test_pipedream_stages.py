"""PipeDream's recurrence against every split there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.baselines.pipedream import (
    LayerProfile,
    Unit,
    layer_profiles,
    levels_of,
    pipedream_split,
)
from profiles.errors import InvalidSpec
from tests.support.problems import on, problem

Layers = Sequence[LayerProfile]

few = st.integers(0, 8).map(float)
layers = st.lists(
    st.builds(
        LayerProfile,
        seconds=st.integers(1, 9).map(float),
        activation_bytes=few,
        weight_bytes=few,
        saved_bytes=few,
        state_bytes=few,
    ),
    min_size=1,
    max_size=5,
)


def parts(total: int) -> Iterator[tuple[int, ...]]:
    """Every way to write *total* as a sum of positive numbers, in order."""
    for cuts in range(total):
        for where in combinations(range(1, total), cuts):
            yield tuple(b - a for a, b in pairwise((0, *where, total)))


def every_split(chain: Layers, unit: Unit, limit: float) -> float:
    """The fastest slowest stage of all pipelines, by the formula as it is written."""
    best = inf
    for sizes in parts(len(chain)):
        for replicas in parts(unit.count):
            if len(replicas) == len(sizes):
                best = min(best, slowest(chain, sizes, replicas, unit, limit))
    return best


def slowest(
    chain: Layers,
    sizes: tuple[int, ...],
    replicas: tuple[int, ...],
    unit: Unit,
    limit: float,
) -> float:
    first, used, worst = 0, 0, 0.0
    for size, many in zip(sizes, replicas, strict=True):
        stage, rate = chain[first : first + size], unit.bytes_per_s * many
        if first:
            worst = max(worst, 2 * chain[first - 1].activation_bytes / rate)
        weights = sum(layer.weight_bytes for layer in stage)
        seconds = sum(layer.seconds for layer in stage)
        worst = max(worst, (seconds + 4 * (many - 1) * weights / rate) / many)
        first, used = first + size, used + many
        flight = max(ceil((unit.count - used) / many), 1)
        saved = sum(layer.saved_bytes for layer in stage)
        held = flight * saved + sum(layer.state_bytes for layer in stage)
        if held > limit:
            return inf
    return worst


@given(
    chain=layers,
    count=st.integers(1, 5),
    rate=st.sampled_from((0.5, 2.0, 100.0)),
    limit=st.sampled_from((10.0, 25.0, inf)),
)
@settings(max_examples=150)
def test_no_split_is_faster(
    chain: Layers, count: int, rate: float, limit: float
) -> None:
    unit = Unit(count=count, bytes_per_s=rate)
    found = pipedream_split(chain, [unit], limit)
    assert found.seconds == pytest.approx(every_split(chain, unit, limit))
    if not found.stages:
        assert found.seconds == inf
        return
    sizes = tuple(stage.end - stage.first for stage in found.stages)
    replicas = tuple(stage.replicas for stage in found.stages)
    assert (sum(sizes), sum(replicas)) == (len(chain), count)
    again = slowest(chain, sizes, replicas, unit, limit)
    assert again == pytest.approx(found.seconds)


@given(chain=layers, inner=st.integers(1, 3), outer=st.integers(1, 3))
@settings(max_examples=40)
def test_levels_nest(chain: Layers, inner: int, outer: int) -> None:
    fast, slow = Unit(count=inner, bytes_per_s=9.0), Unit(count=outer, bytes_per_s=1.0)
    found = pipedream_split(chain, [fast, slow])
    alone = pipedream_split(chain, [fast])
    if outer == 1:
        assert found.seconds == alone.seconds
        assert found.depth == len(alone.stages)
    assert sum(stage.replicas for stage in found.stages) == outer
    assert len(found.stages) <= found.depth <= len(chain)


def test_heavy_weights_are_not_replicated() -> None:
    """The shape of VGG-16: convolutions are work, the last layers weights."""
    work = [LayerProfile(seconds=1.0, activation_bytes=0.1)] * 15
    chain = [*work, LayerProfile(seconds=1.0, weight_bytes=100.0)]
    found = pipedream_split(chain, [Unit(count=16, bytes_per_s=1.0)])
    assert [stage.replicas for stage in found.stages] == [15, 1]


def test_light_weights_are_data_parallel() -> None:
    chain = [LayerProfile(seconds=1.0, activation_bytes=9.0)] * 7
    found = pipedream_split(chain, [Unit(count=4, bytes_per_s=1.0)])
    assert [(one.first, one.end, one.replicas) for one in found.stages] == [(0, 7, 4)]


def test_nothing_to_split_is_said() -> None:
    with pytest.raises(InvalidSpec, match="one layer and one level"):
        pipedream_split([], [Unit(count=1, bytes_per_s=1.0)])
    with pytest.raises(InvalidSpec, match="bandwidth"):
        Unit(count=2, bytes_per_s=0.0)


def test_layers_are_profiled_as_layouts_price_them() -> None:
    posed = problem("gpt-mini", 1, global_batch=1)
    table = layer_profiles(posed, 1)
    graph = posed.job.graph
    assert len(table) == len(graph.layer_names)
    assert table[-1].activation_bytes == 0
    assert len({layer.activation_bytes for layer in table[:-1]}) == 1
    redone = layer_profiles(posed, 1, "full")
    body = slice(1, 1 + graph.body)
    for kept, again in zip(table[body], redone[body], strict=True):
        assert again.seconds > kept.seconds
        assert again.saved_bytes < kept.saved_bytes


@pytest.mark.parametrize(
    ("gpus", "counts"), [(1, [1]), (6, [6]), (64, [8, 8]), (4096, [8, 64, 8])]
)
def test_a_cluster_is_nodes_of_devices(gpus: int, counts: list[int]) -> None:
    levels = levels_of(problem(gpus=gpus, where=on("dgx-a100-80gb")))
    assert [level.count for level in levels] == counts
    assert levels[0].bytes_per_s >= levels[-1].bytes_per_s
