"""What each recipe says, on problems where its rule shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.layout.strategy import Uniform
from costmodel.options.pins import Pins
from planner.api import solve
from planner.baselines.pipedream import LayerProfile, PipeDream
from planner.baselines.recipes import DeepSpeed, Fsdp, HfLadder, Megatron, keeping
from planner.baselines.two_bw import TwoBw, batch_s
from planner.problem.problem import Problem
from planner.problem.solution import Solution
from planner.search.search import AbstractSearch, Limits
from tests.support.problems import on, problem


def found(search: AbstractSearch, posed: Problem) -> Solution:
    return solve(posed, search, Limits(runners_up=0))


def chosen(search: AbstractSearch, posed: Problem) -> Uniform:
    best = found(search, posed).best
    assert best is not None
    return best.choice


def large(
    gpus: int = 64, where: str = "dgx-a100-80gb", name: str = "gpt-13b"
) -> Problem:
    return problem(name, gpus, global_batch=4 * gpus, where=on(where))


def test_megatron_takes_as_little_model_parallelism_as_fits() -> None:
    choice = chosen(Megatron(), large())
    assert (choice.pp, choice.cp, choice.zero) == (1, 1, 0)
    assert 1 < choice.tp <= 8
    narrower = large()
    narrower = replace(narrower, pins=Pins(tp=choice.tp // 2, pp=1))
    assert found(Megatron(), narrower).best is None


def test_megatron_puts_pipelines_only_across_full_nodes() -> None:
    choice = chosen(Megatron(), large(where="p3.16xlarge"))
    assert choice.tp == 8
    assert choice.pp > 1


def test_megatron_takes_the_micro_batch_of_least_closed_form() -> None:
    posed = large()
    choice = chosen(Megatron(), posed)
    others = keeping(posed, tp=choice.tp, pp=choice.pp, cp=1, zero=0)
    assert others is not None
    for size in np.unique(others.micro_batch):
        other = replace(choice, micro_batch=int(size))
        candidate = posed.simulate(other)
        if posed.fits(candidate):
            least = posed.simulate(choice).estimate.step_time_s
            assert candidate.estimate.step_time_s >= least * 0.995


def test_the_ladder_starts_with_plain_replicas() -> None:
    choice = chosen(HfLadder(), problem("gpt-tiny", 8))
    assert (choice.dp, choice.zero) == (8, 0)
    assert choice.micro_batch == 1


def test_the_ladder_shards_where_replicas_do_not_fit() -> None:
    choice = chosen(HfLadder(), large())
    assert (choice.tp, choice.pp, choice.dp) == (1, 1, 64)
    assert choice.zero > 0


def test_the_ladder_splits_the_model_where_nodes_are_far_apart() -> None:
    choice = chosen(HfLadder(), large(where="p3.16xlarge"))
    assert choice.tp * choice.pp > 1
    assert choice.tp <= 8
    assert choice.zero == 1


def test_fsdp_shards_inside_a_node_first() -> None:
    choice = chosen(Fsdp(), large())
    assert (choice.tp, choice.pp, choice.zero, choice.zero_group) == (1, 1, 3, 8)
    wide = chosen(Fsdp(), large(name="mixtral-8x7b"))
    assert (wide.zero, wide.zero_group) == (3, 64)


def test_fsdp_recomputes_only_if_it_must() -> None:
    posed = large()
    kept = found(Fsdp(), posed)
    assert kept.best is not None
    assert kept.best.choice.recompute == "none"
    wide = replace(kept.best.choice, zero_group=64, micro_batch=1)
    least = posed.simulate(wide).estimate.peak_needed_bytes
    tight = replace(posed, memory_limit_bytes=0.99 * least)
    assert chosen(Fsdp(), tight).recompute == "full"


def test_deepspeed_tries_all_levels_and_powers_of_two() -> None:
    posed = problem("gpt-tiny", 2, global_batch=24)
    tuned = found(DeepSpeed(), posed)
    assert tuned.counters.simulated == 4 * len((1, 2, 4))  # 12 a rank; 3, 6, 12 are not
    assert tuned.best is not None
    best = min(
        posed.value(posed.simulate(replace(tuned.best.choice, zero=zero, zero_group=n)))
        for zero, n in ((0, 1), (1, 2), (2, 2), (3, 2))
    )
    assert tuned.value <= best * (1 + 1e-12)


def test_pipelines_of_2bw_and_pipedream_have_no_tensor_parallelism() -> None:
    for search in (TwoBw(), PipeDream()):
        choice = chosen(search, large())
        assert (choice.tp, choice.cp, choice.zero) == (1, 1, 0)
        assert choice.pp > 1


def test_the_closed_form_of_2bw_exchanges_weights_once_a_batch() -> None:
    light = [[LayerProfile(seconds=2.0)], [LayerProfile(seconds=3.0)]]
    assert batch_s(light, width=1, micro_batches=5, bytes_per_s=1.0) == 15.0
    sent = [[LayerProfile(seconds=2.0, activation_bytes=4.0)], light[1]]
    assert batch_s(sent, width=1, micro_batches=5, bytes_per_s=2.0) == 25.0
    heavy = [[LayerProfile(seconds=1.0, weight_bytes=40.0)]]
    assert batch_s(heavy, width=2, micro_batches=5, bytes_per_s=1.0) == 40.0


@pytest.mark.parametrize(
    "search", [Megatron(), HfLadder(), Fsdp(), DeepSpeed(), TwoBw(), PipeDream()]
)
def test_a_pin_stands_in_place_of_the_rule(search: AbstractSearch) -> None:
    posed = problem(gpus=4, pins=Pins(tp=2, pp=2, micro_batch=2))
    answer = found(search, posed)
    if answer.best is not None:
        choice = answer.best.choice
        assert (choice.tp, choice.pp, choice.micro_batch) == (2, 2, 2)


def test_what_no_rule_allows_is_infeasible() -> None:
    posed = problem(gpus=4, global_batch=6)  # four ranks do not split six sequences
    answer = found(Fsdp(), posed)
    assert answer.best is None
    assert answer.counters.considered == 0
