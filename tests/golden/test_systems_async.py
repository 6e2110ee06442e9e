"""Asynchronous pipelines: what their papers print of delays, versions, memory, time."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.schedule.schedules import schedule_called, versions_held
from costmodel.simulation.estimator import Estimate
from costmodel.timeline.timeline import Timeline, simulate
from tests.golden.priced import job_of, priced
from tests.golden.test_systems_schedules import bubble_share, run
from tests.support.pipelines import Pipeline, plain_costs
from tests.support.rows import Obtained

STALE = ("async-1f1b", "2bw", "pipemare", "pb")
PASSES_S = 3.0  # forward and backward of a plain stage


def of_llama(schedule: str, micro_batches: int) -> Estimate:
    """Its 32 layers in four stages, and a head of its own."""
    job = job_of("llama2-7b", micro_batches)
    return priced(job, pp=4, dp=1, schedule=schedule)


def weights_over_one_copy(schedule: str, micro_batches: int) -> list[float]:
    """Bytes of the parameters of each stage, over those of 1F1B."""
    plain, found = (of_llama(name, micro_batches) for name in ("1f1b", schedule))
    return [
        float(one.parameters) / float(other.parameters)
        for one, other in zip(found.memory, plain.memory, strict=True)
    ]


@pytest.mark.row(
    "E3",
    "weight versions of stages, p = 2, 4, 8, 16, a micro-batch an update",
    expected="p - s: p to 1",
)
@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_pipedream_keeps_as_many_versions_as_stages_follow(
    stages: int, obtained: Obtained
) -> None:
    """Narayanan et al. (SOSP 2019): p - s of stage s, up to p on the first one, where
    every micro-batch is an update; and as many micro-batches in flight."""
    wanted = [stages - stage for stage in range(stages)]
    found = versions_held("async-1f1b", stages, 1).tolist()
    obtained(f"{found[0]} to {found[-1]}")
    assert found == wanted
    assert run(Pipeline("async-1f1b", stages, 1, 1)).peak_bytes.tolist() == wanted


@pytest.mark.row(
    "E3", "bytes of weights of four stages, over 1F1B's", expected="4, 3, 2, 1"
)
def test_stashed_weights_are_in_the_memory(obtained: Obtained) -> None:
    found = weights_over_one_copy("async-1f1b", 1)
    obtained(", ".join(f"{one:g}" for one in found))
    assert found == pytest.approx([4, 3, 2, 1], rel=1e-12)
    found = weights_over_one_copy("async-1f1b", 8)
    assert found == pytest.approx([2, 2, 2, 1], rel=1e-12)


@pytest.mark.parametrize("schedule", STALE)
def test_staleness_is_said(schedule: str) -> None:
    found = of_llama(schedule, 4)
    assert any("does not flush" in one for one in found.warnings)
    staleness = found.document()["staleness"]
    ahead = {"async-1f1b": 3, "pipemare": 6, "pb": 6}
    late = [ahead.get(schedule, 0) / 3 * rank / 4 for rank in (3, 2, 1, 0)]
    assert staleness["updates"] == ([1.0] * 4 if schedule == "2bw" else late)
    plain = of_llama("1f1b", 4)
    assert "staleness" not in plain.document()
    assert not any("does not flush" in one for one in plain.warnings)


@pytest.mark.row(
    "E3", "bubble of async-1f1b, in (p, m) = (4, 4), (8, 8), (8, 32)", expected="0"
)
@pytest.mark.row(
    "E6",
    "bubble of 2bw, whose step is m (t_f + t_b), in (4, 4), (8, 8), (8, 32)",
    expected="0, where 1F1B has (p - 1)/(m + p - 1)",
    evidence="computed",
)
@pytest.mark.parametrize("schedule", STALE)
@pytest.mark.parametrize(("stages", "batches"), [(4, 4), (8, 8), (8, 32)])
def test_nothing_is_idle_without_a_flush(
    schedule: str, stages: int, batches: int, obtained: Obtained
) -> None:
    """PipeDream: "no pipeline flushes"; PipeDream-2BW's step of m micro-batches comes
    to m · (t_f + t_b), where that of 1F1B has p - 1 more of them."""
    found = run(Pipeline(schedule, stages, 1, batches))
    flushed = run(Pipeline("1f1b", stages, 1, batches))
    obtained(f"{bubble_share(found):.4f} ({bubble_share(flushed):.4f})")
    assert found.makespan_s == pytest.approx(PASSES_S * batches)
    assert bubble_share(found) == pytest.approx(0, abs=1e-12)
    assert flushed.makespan_s == pytest.approx(PASSES_S * (batches + stages - 1))


def test_an_update_is_all_that_2bw_adds() -> None:
    pipeline = Pipeline("2bw", 8, 1, 32)
    found = simulate(*pipeline, plain_costs(pipeline, step_s=1.5))
    assert found.makespan_s == pytest.approx(32 * PASSES_S + 1.5)


def test_the_slowest_stage_sets_the_pace() -> None:
    pipeline = Pipeline("2bw", 4, 1, 8)
    backward_s = np.array([2.0, 2.5, 3.0, 2.0])
    found = simulate(*pipeline, plain_costs(pipeline, backward_s=backward_s))
    assert found.makespan_s == pytest.approx(8 * 4.0)


@pytest.mark.row("E6", "bytes of weights under 2bw, over 1F1B's", expected="2")
def test_2bw_keeps_two_versions_everywhere(obtained: Obtained) -> None:
    """Narayanan et al. (ICML 2021): double-buffered weights, whatever m >= p."""
    for batches in (4, 16):
        found = weights_over_one_copy("2bw", batches)
        obtained(f"{max(found):g}")
        assert found == pytest.approx([2.0] * 4, rel=1e-12)


def test_2bw_is_one_update_late_everywhere() -> None:
    """W(t+1) = W(t) - lr · grad f(W(t-1)): of every micro-batch of step t."""
    stale = schedule_called("2bw").stale
    assert stale is not None
    for rank in range(8):
        ahead = stale.ahead(rank, 8)
        used = [stale.version(number, ahead, 8) for number in range(64)]
        assert used == [max(number // 8 - 1, 0) for number in range(64)]


@pytest.mark.row(
    "E4",
    "use of fill and drain, (S, N) = (4, 1), (8, 8), (20, 128)",
    expected="N/(N + 2 (S - 1)): 0.1429; 0.3636; 0.7711",
    evidence="computed",
)
@pytest.mark.parametrize(("stages", "samples"), [(4, 1), (8, 8), (20, 128)])
def test_filling_and_draining_a_worker_a_layer(
    stages: int, samples: int, obtained: Obtained
) -> None:
    """Kosson et al. (MLSys 2021): N / (N + 2(S - 1)) of a worker's slots. A worker does
    a forward and a backward in one slot: a sample goes down S of them and up S - 1."""
    unrolled = Pipeline("gpipe", 2 * stages - 1, 1, samples)
    found = simulate(*unrolled, plain_costs(unrolled, backward_s=0.0))
    share = samples / found.makespan_s
    obtained(f"{share:.4f}")
    assert share == pytest.approx(samples / (samples + 2 * (stages - 1)))


@pytest.mark.row(
    "E4", "samples that the first of nine workers has", expected="2 (S - 1) + 1 = 17"
)
def test_a_worker_waits_for_2_times_as_many_as_follow(obtained: Obtained) -> None:
    """Pipelined backpropagation: updates D = 2(S - 1 - s) late, of which a worker has
    D + 1 samples, and one copy of its weights."""
    stages, stale = 9, schedule_called("pb").stale
    assert stale is not None
    delays = [2 * (stages - 1 - stage) for stage in range(stages)]
    assert [stale.updates_late(s, stages, 1) for s in range(stages)] == delays
    found = run(Pipeline("pb", stages, 1, 1))
    held = found.in_flight_at_peak().sum(axis=1).tolist()
    obtained(f"{held[0]}")
    assert held == [d + 1 for d in delays]
    assert versions_held("pb", stages, 1).tolist() == [1] * stages


def throughput(found: Timeline) -> float:
    """Of what a pipeline of these stages could do at most."""
    return found.program.shape.micro_batches * PASSES_S / found.makespan_s


@pytest.mark.row(
    "E5",
    "table: throughput of GPipe, PipeDream, PipeMare; weights of the last two",
    expected="N/(N + p - 1), 1, 1; p/N, 1 (of the first stage)",
)
@pytest.mark.parametrize("stages", [4, 14, 16])
@pytest.mark.parametrize("batches", [1, 4, 16])
def test_pipemares_table(stages: int, batches: int, obtained: Obtained) -> None:
    """Yang et al. (MLSys 2021), table 1: throughput N/(N + p - 1) of GPipe and 1 of
    both others; delays (2(p - i) + 1)/N; weights W, and of PipeDream W·p/N: the first
    stage of 1F1B has as many versions, and the newest one."""
    shape = (stages, 1, batches)
    gpipe, *others = (
        throughput(run(Pipeline(name, *shape)))
        for name in ("gpipe", "async-1f1b", "pipemare")
    )
    assert gpipe == pytest.approx(batches / (batches + stages - 1))
    assert others == pytest.approx([1.0, 1.0])
    stale = schedule_called("pipemare").stale
    assert stale is not None
    for stage in range(1, stages + 1):
        late = (stale.ahead(stage - 1, stages) + 1) / batches
        assert late == (2 * (stages - stage) + 1) / batches
    assert versions_held("pipemare", stages, batches).max() == 1
    most = versions_held("async-1f1b", stages, batches).max()
    if batches == 1:
        obtained(f"p {stages}: {gpipe:.4f}, {others[0]:g}, {others[1]:g}; {most}, 1")
    assert 0 <= most - stages / batches < 2


@pytest.mark.row(
    "E5",
    "throughput over GPipe's, N = 1, p = 14 to 16",
    expected="14.3 times: p",
    evidence="computed",
)
def test_where_14_times_come_from(obtained: Obtained) -> None:
    """With one micro-batch GPipe does 1/p of what PipeMare does."""
    for stages in (14, 15, 16):
        gpipe, pipemare = (
            throughput(run(Pipeline(name, stages, 1, 1)))
            for name in ("gpipe", "pipemare")
        )
        obtained(f"{pipemare / gpipe:g}")
        assert pipemare / gpipe == pytest.approx(stages)


def test_pipemare_needs_least_weights() -> None:
    assert weights_over_one_copy("pipemare", 4) == pytest.approx([1.0] * 4)
    assert weights_over_one_copy("pb", 4) == pytest.approx([1.0] * 4)
