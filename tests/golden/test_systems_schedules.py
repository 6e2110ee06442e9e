"""Pipeline schedules: bubbles and micro-batches in flight that papers print."""

from __future__ import annotations

import pytest

from costmodel.layout import Layout
from costmodel.timeline import Timeline, simulate
from costmodel.uniform import Uniform
from tests.golden.priced import job_of, layout_of, priced
from tests.pipelines import Pipeline, plain_costs


def run(pipeline: Pipeline) -> Timeline:
    """Equal stages of 3 s (forward 1, backward 2), one byte saved, no transfers."""
    return simulate(*pipeline, plain_costs(pipeline))


def bubble_share(found: Timeline) -> float:
    """Idle over total time of rank 0."""
    account = found.account(0)
    return (account.bubble_s + account.idle_s) / found.makespan_s


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("stages", "batches", "share"), [(8, 8, 0.4667), (8, 32, 0.1795)]
)
def test_bubbles_of_gpipe(
    schedule: str, stages: int, batches: int, share: float
) -> None:
    """Huang et al. (NeurIPS 2019), section 2.3: (K − 1)/(M + K − 1) of the time. 1F1B
    has the same (Narayanan et al., ICML 2021)."""
    found = bubble_share(run(Pipeline(schedule, stages, 1, batches)))
    assert found == pytest.approx(share, abs=5e-5)


@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_four_times_as_many_micro_batches_leave_a_fifth(stages: int) -> None:
    """GPipe's rule, "negligible when M ≥ 4K"."""
    assert bubble_share(run(Pipeline("gpipe", stages, 1, 4 * stages))) < 0.2


@pytest.mark.parametrize(("stages", "batches"), [(8, 8), (8, 32), (4, 3)])
def test_1f1b_saves_memory_and_not_time(stages: int, batches: int) -> None:
    """In flight: all m under GPipe, min(p − s, m) at stage s of 1F1B."""
    pair = [run(Pipeline(name, stages, 1, batches)) for name in ("gpipe", "1f1b")]
    assert pair[0].makespan_s == pair[1].makespan_s
    assert pair[0].peak_bytes.tolist() == [batches] * stages
    wanted = [min(stages - stage, batches) for stage in range(stages)]
    assert pair[1].peak_bytes.tolist() == wanted


@pytest.mark.parametrize(("dp", "share"), [(8, 0.124), (10, 0.150), (12, 0.175)])
def test_bubbles_of_mt_nlg(dp: int, share: float) -> None:
    """Smith et al. (2022): batch 1,920 over 35 stages."""
    found = bubble_share(run(Pipeline("1f1b", 35, 1, 1920 // dp)))
    assert found == pytest.approx(share, abs=0.0005)


def test_step_times_of_mt_nlg_fall_as_measured() -> None:
    """60.1, 50.2 and 44.4 s on 2,240, 2,800 and 3,360 GPUs: the ratios, within 5 %."""
    job = job_of("mt-nlg-530b", 1920)
    first, *others = (
        priced(job, tp=8, pp=35, dp=dp, recompute="full").step_time_s
        for dp in (8, 10, 12)
    )
    ratios = [step_s / first for step_s in others]
    assert ratios == pytest.approx([50.2 / 60.1, 44.4 / 60.1], rel=0.05)


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 8), (8, 3, 16), (12, 4, 12)])
def test_interleaving_divides_the_bubble(p: int, v: int, m: int) -> None:
    """Narayanan et al. (SC 2021), section 2.2: (p − 1)/(v·m) of the ideal time."""
    work = v * m * 3.0
    found = run(Pipeline("interleaved", p, v, m))
    assert found.makespan_s / work - 1 == pytest.approx((p - 1) / (v * m))


def test_interleaving_gains_less_as_the_batch_grows() -> None:
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
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0.1


def two_by_two() -> Layout:
    """OpenMLSys, section 11.2: two stages of two replicas on four GPUs."""
    return layout_of(job_of("gpt-tiny", 8), Uniform(pp=2, dp=2, zero=0))


def test_the_books_hybrid_of_two_stages_and_two_replicas() -> None:
    layout = two_by_two()
    assert [str(stage.mesh.ranks) for stage in layout.stages] == ["0-1", "2-3"]
    assert [stage.mesh.dp for stage in layout.stages] == [2, 2]
    assert layout.micro_batches == 4
    found = priced(job_of("gpt-tiny", 8), pp=2, dp=2)
    assert found.layout == layout
    assert found.breakdown_s["bubble"] > 0
    assert found.breakdown_s["data_comm"] > 0
