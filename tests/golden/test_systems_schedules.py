"""Pipeline schedules: bubbles and micro-batches in flight that papers print."""

from __future__ import annotations

import pytest

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform
from costmodel.timeline.timeline import Timeline, simulate
from tests.golden.priced import job_of, layout_of, priced
from tests.support.pipelines import Pipeline, plain_costs
from tests.support.rows import Obtained


def run(pipeline: Pipeline) -> Timeline:
    """Equal stages of 3 s (forward 1, backward 2), one byte saved, no transfers."""
    return simulate(*pipeline, plain_costs(pipeline))


def bubble_share(found: Timeline) -> float:
    """Idle over total time of rank 0."""
    account = found.account(0)
    return (account.bubble_s + account.idle_s) / found.makespan_s


@pytest.mark.row(
    "E9",
    "bubble of (8, 8) and (8, 32), of GPipe and of 1F1B",
    expected="0.4667; 0.1795",
    evidence="computed",
)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("stages", "batches", "share"), [(8, 8, 0.4667), (8, 32, 0.1795)]
)
def test_bubbles_of_gpipe(
    schedule: str, stages: int, batches: int, share: float, obtained: Obtained
) -> None:
    """Huang et al. (NeurIPS 2019), section 2.3: (K − 1)/(M + K − 1) of the time. 1F1B
    has the same (Narayanan et al., ICML 2021)."""
    found = bubble_share(run(Pipeline(schedule, stages, 1, batches)))
    obtained(f"{found:.4f}")
    assert found == pytest.approx(share, abs=5e-5)


@pytest.mark.row("E9", "bubble of M = 4K", expected="negligible: under 0.2")
@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_four_times_as_many_micro_batches_leave_a_fifth(stages: int) -> None:
    """GPipe's rule, "negligible when M ≥ 4K"."""
    assert bubble_share(run(Pipeline("gpipe", stages, 1, 4 * stages))) < 0.2


@pytest.mark.row(
    "E7",
    "speed-up at (2,4), (2,32), (4,4), (4,32), (8,4), (8,32)",
    misses="equal stages alone: their profile is not known",
    expected="1.539, 1.773, 1.666, 2.709, 2.621, 4.953 (10 %)",
    evidence="seen; computed",
)
@pytest.mark.parametrize(
    ("stages", "batches", "ideal", "measured"),
    [
        (2, 4, 1.600, 1.539),
        (2, 32, 1.939, 1.773),
        (4, 4, 2.286, 1.666),
        (4, 32, 3.657, 2.709),
        (8, 4, 2.909, 2.621),
        (8, 32, 6.564, 4.953),
    ],
)
def test_torchgpipe_stays_below_equal_stages(
    stages: int, batches: int, ideal: float, measured: float, obtained: Obtained
) -> None:
    """Kim et al. (2020), docs/benchmarks.rst: AmoebaNet-D on P40s over two stages and
    one micro-batch. Equal stages give n·m/(n + m − 1), its own 4 to 27 % less."""
    pipeline = Pipeline("gpipe", stages, 1, batches)
    share_s = 2 / (stages * batches)  # a part of two stages' forward
    costs = plain_costs(pipeline, forward_s=share_s, backward_s=2 * share_s)
    whole_s = run(Pipeline("gpipe", 2, 1, 1)).makespan_s
    found = whole_s / simulate(*pipeline, costs).makespan_s
    obtained(f"{found:.3f}")
    assert found == pytest.approx(ideal, abs=5e-4)
    assert measured < found


@pytest.mark.parametrize("stages", [14, 16])
def test_one_micro_batch_uses_one_stage_at_a_time(stages: int) -> None:
    """Yang et al. (MLSys 2021): GPipe's throughput is N/(N + p − 1) of an asynchronous
    pipeline's, 1/p where N = 1: their 14.3 times, at 14 stages and more."""
    busy = 1 - bubble_share(run(Pipeline("gpipe", stages, 1, 1)))
    assert busy == pytest.approx(1 / stages)


@pytest.mark.row(
    "E6",
    "makespan and first rank's peak of GPipe and 1F1B, (8, 8), (8, 32), (4, 3)",
    expected="equal; m and min(p, m)",
    evidence="computed",
)
@pytest.mark.parametrize(("stages", "batches"), [(8, 8), (8, 32), (4, 3)])
def test_1f1b_saves_memory_and_not_time(
    stages: int, batches: int, obtained: Obtained
) -> None:
    """In flight: all m under GPipe, min(p − s, m) at stage s of 1F1B."""
    pair = [run(Pipeline(name, stages, 1, batches)) for name in ("gpipe", "1f1b")]
    times = " and ".join(f"{one.makespan_s:g}" for one in pair)
    peaks = " and ".join(f"{one.peak_bytes[0]:g}" for one in pair)
    obtained(f"{times} s, {peaks}")
    assert pair[0].makespan_s == pair[1].makespan_s
    assert pair[0].peak_bytes.tolist() == [batches] * stages
    wanted = [min(stages - stage, batches) for stage in range(stages)]
    assert pair[1].peak_bytes.tolist() == wanted


@pytest.mark.row(
    "J3",
    "bubble of 240, 192, 160 micro-batches",
    expected="12.4; 15.0; 17.5 %",
    evidence="computed",
)
@pytest.mark.parametrize(("dp", "share"), [(8, 0.124), (10, 0.150), (12, 0.175)])
def test_bubbles_of_mt_nlg(dp: int, share: float, obtained: Obtained) -> None:
    """Smith et al. (2022): batch 1,920 over 35 stages."""
    found = bubble_share(run(Pipeline("1f1b", 35, 1, 1920 // dp)))
    obtained(f"{found:.1%}")
    assert found == pytest.approx(share, abs=0.0005)


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 8), (8, 3, 16), (12, 4, 12)])
def test_interleaving_divides_the_bubble(p: int, v: int, m: int) -> None:
    """Narayanan et al. (SC 2021), section 2.2: (p − 1)/(v·m) of the ideal time."""
    work = v * m * 3.0
    found = run(Pipeline("interleaved", p, v, m))
    assert found.makespan_s / work - 1 == pytest.approx((p - 1) / (v * m))


@pytest.mark.row(
    "A1", "gain of interleaving, batches of 12 to 60", expected="10+ %, falling"
)
def test_interleaving_gains_less_as_the_batch_grows(obtained: Obtained) -> None:
    """SC 2021, figure 12: 175B, t = 8, p = 12, two layers a virtual stage, "10+ %"."""
    shared = {"tp": 8, "pp": 12, "recompute": "full"}
    gains = []
    for batch in (12, 24, 36, 48, 60):
        job = job_of("gpt-175b", batch)
        plain = priced(job, **shared)
        woven = priced(job, schedule="interleaved", virtual_stages=4, **shared)
        gains.append(plain.step_time_s / woven.step_time_s - 1)
        ideal = (batch + 11) / (batch + 11 / 4) - 1
        assert 0 < gains[-1] < ideal
    obtained(", ".join(f"{one:.1%}" for one in gains))
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0.1


def two_by_two() -> Layout:
    """OpenMLSys, section 11.2: two stages of two replicas on four GPUs."""
    return layout_of(job_of("gpt-tiny", 8), Uniform(pp=2, dp=2, zero=0))


@pytest.mark.row("L3", "ranks of the two stages", expected="0-1 and 2-3")
def test_the_books_hybrid_of_two_stages_and_two_replicas() -> None:
    layout = two_by_two()
    assert [str(stage.mesh.ranks) for stage in layout.stages] == ["0-1", "2-3"]
    assert [stage.mesh.dp for stage in layout.stages] == [2, 2]
    assert layout.micro_batches == 4
    found = priced(job_of("gpt-tiny", 8), pp=2, dp=2)
    assert found.layout == layout
    assert found.breakdown_s["bubble"] > 0
    assert found.breakdown_s["data_comm"] > 0


def of_passes(
    pipeline: Pipeline, forward_s: float, inputs_s: float, weights_s: float
) -> Timeline:
    """Equal stages with F, I and W apart."""
    costs = plain_costs(
        pipeline,
        forward_s=forward_s,
        backward_s=inputs_s + weights_s,
        weight_s=weights_s,
    )
    return simulate(*pipeline, costs)


@pytest.mark.row(
    "E8",
    "slots at D = N = 4, 8, 16, backwards as forwards",
    expected="10; 22; 46",
    evidence="computed",
)
@pytest.mark.parametrize(("stages", "slots"), [(4, 10), (8, 22), (16, 46)])
def test_slots_of_chimera(stages: int, slots: int, obtained: Obtained) -> None:
    """Li and Hoefler (SC 2021), table 2: D workers and D micro-batches, backwards as
    long as forwards, take 2·D + D − 2 slots: a bubble of (D − 2)/(2·N + D − 2)."""
    found = of_passes(Pipeline("chimera", stages, 1, stages), 1.0, 1.0, 0.0)
    obtained(f"{found.makespan_s:g}")
    assert found.makespan_s == slots
    ratio = (stages - 2) / (3 * stages - 2)
    assert bubble_share(found) == pytest.approx(ratio)


@pytest.mark.row(
    "E8",
    "slots at D = N = 4, 8, 16, backwards twice as long",
    expected="16; 36; 76",
    evidence="computed",
)
@pytest.mark.parametrize(("stages", "slots"), [(4, 16), (8, 36), (16, 76)])
def test_slots_of_chimera_with_backwards_twice_as_long(
    stages: int, slots: int, obtained: Obtained
) -> None:
    """(D − 2)/(1.5·N + D − 2) of the time [derived by list scheduling]."""
    found = run(Pipeline("chimera", stages, 1, stages))
    obtained(f"{found.makespan_s:g}")
    assert found.makespan_s == slots
    share = (stages - 2) / (2.5 * stages - 2)
    assert bubble_share(found) == pytest.approx(share)


@pytest.mark.row(
    "E8", "micro-batches in flight, D = 8", expected="D/2 + 1 to D: 5 to 8"
)
@pytest.mark.parametrize("batches", [8, 16, 32])
def test_chimera_holds_as_its_table_says(batches: int, obtained: Obtained) -> None:
    """Activations of (D/2 + 1) to D micro-batches, and twice the weights."""
    found = run(Pipeline("chimera", 8, 1, batches))
    obtained(f"{min(found.peak_bytes):g} to {max(found.peak_bytes):g}")
    assert found.peak_bytes.tolist() == [5, 6, 7, 8, 8, 7, 6, 5]


def test_chimera_doubles_weights_and_sums_gradients_over_both_copies() -> None:
    job = job_of("gpt-13b", 32)
    one, two = (priced(job, pp=4, tp=4, dp=1, schedule=s) for s in ("1f1b", "chimera"))
    states = [sum(float(item.parameters) for item in of.memory) for of in (one, two)]
    assert states[1] == pytest.approx(2 * states[0])
    assert one.breakdown_s["data_comm"] < two.breakdown_s["data_comm"]


@pytest.mark.parametrize(("stages", "batches"), [(4, 8), (8, 16), (8, 32)])
@pytest.mark.parametrize("passes", [(1.0, 1.0, 1.0), (2.0, 3.0, 1.0), (2.0, 2.0, 1.0)])
def test_bubbles_of_zero_bubble_schedules(
    stages: int, batches: int, passes: tuple[float, float, float]
) -> None:
    """Qi et al. (ICLR 2024), table 2: (p − 1)(T_F + T_B + T_W) of 1F1B and
    (p − 1)(T_F + T_B − T_W) of ZB-H1, in which memory is 1F1B's first rank's."""
    forward_s, inputs_s, weights_s = passes
    whole = batches * sum(passes)
    plain, split = (
        of_passes(Pipeline(name, stages, 1, batches), *passes).makespan_s - whole
        for name in ("1f1b", "zb-h1")
    )
    assert plain == pytest.approx((stages - 1) * sum(passes))
    shorter = (stages - 1) * (forward_s + inputs_s - weights_s)
    assert split == pytest.approx(shorter)
    costs = plain_costs(Pipeline("zb-h1", stages, 1, batches), weight_bytes=1.0)
    held = simulate("zb-h1", stages, 1, batches, costs).peak_bytes
    assert held.tolist() == [stages] * stages


@pytest.mark.parametrize(("ranks", "batches"), [(4, 8), (8, 16), (8, 32)])
def test_zb_v_has_no_bubble_where_passes_are_equal(ranks: int, batches: int) -> None:
    """Qi et al. (ICLR 2024), section 6: once a rank has begun it never waits, and all
    hold as much as 1F1B's first rank, 2p half stages."""
    pipeline = Pipeline("zb-v", ranks, 2, batches)
    found = of_passes(pipeline, 1.0, 1.0, 1.0)
    assert found.makespan_s == 6 * batches + ranks - 1
    for rank in range(ranks):
        assert found.waits(rank) == (0, rank)
    assert found.in_flight_at_peak().sum(axis=1).tolist() == [2 * ranks] * ranks


@pytest.mark.parametrize(("ranks", "batches"), [(4, 8), (8, 16)])
def test_dualpipe_holds_one_more(ranks: int, batches: int) -> None:
    """DeepSeek-V3 (arXiv 2412.19437), table 2: activations of PP + 1 stages, where PP
    counts stages, two a rank."""
    found = run(Pipeline("dualpipe-v", ranks, 2, batches))
    assert found.peak_bytes.tolist() == [2 * ranks + 1] * ranks


def test_what_weight_gradients_are_made_of() -> None:
    """Qi et al. (ICLR 2024), table 1: W of a GPT layer holds 32·s·b·h bytes, B saves
    34·s·b·h + 5·a·s²·b of which flash attention drops the second."""
    job = job_of("gpt-175b", 8)
    found = priced(job, tp=1, pp=96, dp=1, schedule="zb-h1")
    kept = found.timeline.costs.weight_bytes[1]
    assert kept == pytest.approx(32 * 2048 * 12288, rel=1e-3)
