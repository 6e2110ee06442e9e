"""Published training runs: step times and FLOP conventions, each with its source.

SC'21   Narayanan et al., SC 2021 (arXiv 2104.04473), Table 1: weak scaling to 1T
E13     Korthikanti et al., MLSys 2023 (arXiv 2205.05198), Table 5: iteration times
J3      Smith et al., 2022 (arXiv 2201.11990), section 2.4: MT-NLG 530B
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest

from costmodel.runs.comparison import read_left_out
from costmodel.runs.pricing import Price, price_runs
from costmodel.runs.table import Run
from costmodel.simulation.flops import model_flops
from profiles.models.param_count import parameters
from profiles.units import TB, TFLOPS
from tests.golden.priced import gpt
from tests.support.rows import Obtained

COMMON = {
    "seq_len": "2048",
    "vocab": "51200",
    "cluster": "dgx-a100-80gb",
    "attention_kernel": "fused-softmax",
    "zero": "0",
}
# layers, hidden, heads, tp, pp, virtual stages, GPUs, batch, micro-batch;
# billions of parameters, TFLOP/s per GPU with recompute, iteration seconds.
SC21 = (
    (24, 2304, 24, 1, 1, 1, 32, 512, 16, 1.7, 137, 3.53),
    (30, 3072, 32, 2, 1, 1, 64, 512, 16, 3.6, 138, 3.70),
    (36, 4096, 32, 4, 1, 1, 128, 512, 16, 7.5, 142, 3.70),
    (40, 6144, 48, 8, 1, 1, 256, 1024, 8, 18.4, 135, 9.40),
    (48, 8192, 64, 8, 2, 1, 512, 1536, 4, 39.1, 138, 14.45),
    (60, 10240, 80, 8, 4, 3, 1024, 1792, 2, 76.1, 140, 16.06),
    (80, 12288, 96, 8, 8, 2, 1536, 2304, 2, 145.6, 148, 24.82),
    (96, 16384, 128, 8, 16, 2, 1920, 2160, 1, 310.1, 155, 37.61),
    (105, 20480, 128, 8, 35, 3, 2520, 2520, 1, 529.6, 163, 54.08),
    (128, 25600, 160, 8, 64, 1, 3072, 3072, 1, 1008.0, 163, 102.6),
)
# layers, hidden, heads, pp, virtual stages, GPUs, batch, micro-batch; seconds with full
# recompute, and with selective recompute and sequence parallelism; MFU and HFU of that.
E13 = (
    (48, 6144, 64, 1, 1, 8, 4, 4, 1.42, 1.10, 0.417, 0.438),
    (96, 12288, 96, 8, 3, 64, 64, 1, 18.13, 13.75, 0.514, 0.528),
    (105, 20480, 128, 35, 3, 280, 280, 1, 49.05, 37.83, 0.560, 0.570),
    (128, 25600, 160, 64, 1, 512, 512, 1, 94.42, 71.49, 0.563, 0.570),
)
# GPUs, iteration seconds, TFLOP/s per GPU with recompute
MTNLG = ((2240, 60.1, 126), (2800, 50.2, 121), (3360, 44.4, 113))
A100_PEAK = 312 * TFLOPS


@lru_cache(maxsize=64)
def price(cells: tuple[tuple[str, str], ...]) -> Price:
    run = Run(row=0, asked=dict(cells), measured={}, kept={})
    (found,) = price_runs([run])
    assert found.price is not None, found.error
    return found.price


def priced(**cells: Any) -> Price:
    texts = {name: str(cell) for name, cell in cells.items()}
    return price(tuple({**COMMON, **texts}.items()))


def sc21(row: tuple[Any, ...]) -> Price:
    names = "layers hidden heads tp pp virtual_stages gpus global_batch micro_batch"
    cells = dict(zip(names.split(), row, strict=False))
    # The paper is of April 2021, between versions 2.0 (December 2020) and 3.0.
    return priced(
        **cells, precision="fp16", recompute="full", framework="Megatron-LM v2.x"
    )


def e13(row: tuple[Any, ...], *, selective: bool) -> Price:
    names = "layers hidden heads pp virtual_stages gpus global_batch micro_batch"
    cells = dict(zip(names.split(), row, strict=False))
    return priced(
        **cells,
        tp=8,
        precision="fp16",
        recompute="selective" if selective else "full",
        sequence_parallel="y" if selective else "n",
        framework="Megatron-LM",
    )


def mtnlg(gpus: int) -> Price:
    return priced(
        layers=105,
        hidden=20480,
        heads=128,
        gpus=gpus,
        tp=8,
        pp=35,
        global_batch=1920,
        micro_batch=1,
        precision="bf16",
        recompute="full",
        framework="Megatron-DeepSpeed",
    )


@pytest.mark.row(
    "A1",
    "step of each of Table 1, s",
    expected="3.53; 3.70; 3.70; 9.40; 14.45; 16.06; 24.82; 37.61; 54.08; 102.6 (10 %)",
    evidence="computed from printed TFLOP/s",
)
@pytest.mark.parametrize("row", SC21, ids=lambda row: f"{row[9]}B")
def test_megatrons_weak_scaling(row: tuple[Any, ...], obtained: Obtained) -> None:
    """The source prints whole TFLOP/s: half a percent of rounding is its own."""
    obtained(f"{sc21(row).step_time_s:.2f}")
    assert sc21(row).step_time_s == pytest.approx(row[-1], rel=0.10)


def test_megatrons_weak_scaling_on_average(root: Path) -> None:
    """Calculon's model reaches 7.7 % on these ten; the README says what ours does."""
    errors = [abs(sc21(row).step_time_s / row[-1] - 1) for row in SC21]
    assert fmean(errors) <= 0.06
    assert shown("Table 1 | 10", errors) in (root / "README.md").read_text()


@pytest.mark.parametrize("what", ["fit", "without_family", "without_source"])
def test_the_readme_says_how_true_all_are(root: Path, what: str) -> None:
    runs = read_left_out().values()
    errors = [abs(getattr(item, what) - 1) for item in runs]
    line = f"| {100 * fmean(errors):.1f} % | {100 * median(errors):.1f} % |"
    readme = (root / "README.md").read_text()
    assert line in readme
    assert f"{len(errors):,} published runs" in readme


def shown(row: str, errors: list[float]) -> str:
    return f"{row} | {100 * fmean(errors):.1f} % | {100 * max(errors):.1f} % |"


@pytest.mark.row(
    "E13",
    "Table 5: seconds, full and selective with sp",
    expected="1.42, 18.13, 49.05, 94.42; 1.10, 13.75, 37.83, 71.49 (9 %)",
)
@pytest.mark.parametrize("selective", [False, True], ids=["full", "selective+sp"])
@pytest.mark.parametrize("row", E13, ids=lambda row: f"{row[0]}x{row[1]}")
def test_selective_recompute(
    row: tuple[Any, ...], selective: bool, obtained: Obtained
) -> None:
    """Calculon's model reaches 3.65 % mean and 8.87 % at worst on these eight."""
    measured_s = row[9] if selective else row[8]
    obtained(f"{e13(row, selective=selective).step_time_s:.2f}")
    assert e13(row, selective=selective).step_time_s == pytest.approx(
        measured_s, rel=0.09
    )


def errors_of_table_5() -> list[float]:
    return [
        abs(e13(row, selective=selective).step_time_s / row[8 + selective] - 1)
        for row in E13
        for selective in (False, True)
    ]


@pytest.mark.row(
    "E13", "Table 5: mean error", misses="layers on A100 are 9 % slow", expected="4 %"
)
@pytest.mark.xfail(reason="4.1 % off in the mean for 4: docs/accuracy.md")
def test_selective_recompute_on_average(obtained: Obtained) -> None:
    obtained(f"{fmean(errors_of_table_5()):.1%}")
    assert fmean(errors_of_table_5()) <= 0.04


def test_the_readme_says_how_true_selective_recompute_is(root: Path) -> None:
    found = shown("Table 5 | 8", errors_of_table_5())
    assert found in (root / "README.md").read_text()


@pytest.mark.row(
    "J3",
    "seconds on 2,240, 2,800, 3,360 GPUs",
    misses="5 s of each step are missing, however many micro-batches it has",
    expected="60.1; 50.2; 44.4 (7 %)",
)
@pytest.mark.parametrize(("gpus", "measured_s", "_"), MTNLG)
def test_mt_nlg(gpus: int, measured_s: float, _: int, obtained: Obtained) -> None:
    """10 to 13 % too few: a micro-batch takes what it did, a step does not."""
    obtained(f"{mtnlg(gpus).step_time_s:.1f}")
    assert 0.86 < mtnlg(gpus).step_time_s / measured_s < 0.91


@pytest.mark.row(
    "J3",
    "seconds of a micro-batch, of a step of none (least squares over 240, 192, 160)",
    expected="0.197, 12.7",
    evidence="computed",
    misses="the step's own seconds: 286 other steps of this software lack none",
)
def test_a_micro_batch_of_mt_nlg_takes_what_was_measured(obtained: Obtained) -> None:
    counts = [1920 * 280 // gpus for gpus, _, _ in MTNLG]
    own = [mtnlg(gpus).step_time_s for gpus, _, _ in MTNLG]
    measured = [seconds for _, seconds, _ in MTNLG]
    (each_s, rest_s), real = (np.polyfit(counts, one, 1) for one in (own, measured))
    obtained(f"{each_s:.3f}, {rest_s:.1f}")
    assert each_s == pytest.approx(real[0], rel=0.03)
    assert 4 < real[1] - rest_s < 6


@pytest.mark.row("J3", "slowest over fastest step", expected="60.1 / 44.4 = 1.354")
def test_mt_nlg_scales_as_measured(obtained: Obtained) -> None:
    """The drop from 126 to 113 TFLOP/s is the bubble: 12 to 18 % of the step."""
    slowest, *_, fastest = (mtnlg(gpus).step_time_s for gpus, _, _ in MTNLG)
    obtained(f"{slowest / fastest:.3f}")
    assert slowest / fastest == pytest.approx(60.1 / 44.4, rel=0.05)


@pytest.mark.row(
    "A1",
    "billion parameters of Table 1",
    expected="1.7; 3.6; 7.5; 18.4; 39.1; 76.1; 145.6; 310.1; 529.6; 1008.0",
    evidence="computed",
)
@pytest.mark.parametrize("row", SC21, ids=lambda row: f"{row[9]}B")
def test_parameters_of_the_weak_scaling(
    row: tuple[Any, ...], obtained: Obtained
) -> None:
    """12 L h² (1 + 13/12h + (V + s)/12Lh), SC'21 equation 2."""
    layers, hidden, heads, *_ = row
    count = parameters(gpt(layers, hidden, heads, 1).spec).total
    formula = 12 * layers * hidden**2
    formula *= 1 + 13 / (12 * hidden) + (51200 + 2048) / (12 * layers * hidden)
    # The formula leaves the final norm's two vectors out.
    obtained(f"{count / 1e9:.1f}")
    assert count - 2 * hidden == pytest.approx(formula, rel=1e-12)
    assert round(count / 1e9, 1) == row[9]


@pytest.mark.parametrize("row", SC21, ids=lambda row: f"{row[9]}B")
def test_hardware_flops_of_the_weak_scaling(row: tuple[Any, ...]) -> None:
    """With full recompute 4/3 of the layers' FLOPs: the printed rate gives the time."""
    layers, hidden, heads, *_, batch, _, _, rate, seconds = row
    job = gpt(layers, hidden, heads, batch)
    head = 6.0 * job.tokens * hidden * 51200
    hardware = (model_flops(job) - head) * 4 / 3 + head
    taken = hardware / (rate * TFLOPS * row[6])
    assert taken == pytest.approx(seconds, rel=0.005)


@pytest.mark.parametrize("row", E13, ids=lambda row: f"{row[0]}x{row[1]}")
def test_utilisation_of_selective_recompute(row: tuple[Any, ...]) -> None:
    """MFU counts what the model needs, HFU the recomputed core of attention too.

    The paper's HFU (its appendix A) doubles all of attention, forward and backward:
    1 + s/3h for 1 + s/6h. What is recomputed is a forward, a third of that.
    """
    found = e13(row, selective=True)
    document, scale = found.document, found.step_time_s / row[9]
    mfu, hfu = document["mfu"] * scale, document["hfu"] * scale
    assert mfu == pytest.approx(row[10], abs=0.001)
    assert mfu + 3 * (hfu - mfu) == pytest.approx(row[11], abs=0.001)
    assert document["peak_flops_used"] == A100_PEAK


@pytest.mark.parametrize(("gpus", "measured_s", "rate"), MTNLG)
def test_hardware_rate_of_mt_nlg(gpus: int, measured_s: float, rate: int) -> None:
    found = mtnlg(gpus)
    printed = found.document["hardware_tflops_per_gpu"] * found.step_time_s / measured_s
    assert printed == pytest.approx(rate, abs=0.6)


@pytest.mark.row(
    "A1", "days of 1 T and of GPT-3", expected="83.9; 33.8", evidence="computed"
)
@pytest.mark.parametrize(
    ("billions", "tokens", "gpus", "rate", "days"),
    [(1000, 450, 3072, 163, 83.9), (175, 300, 1024, 140, 33.8)],
)
def test_training_time_by_the_rule_of_eight(
    billions: int, tokens: int, gpus: int, rate: int, days: float, obtained: Obtained
) -> None:
    """8 T P / (n X), SC'21 equation 4; 84 and 34 days in the paper."""
    seconds = 8 * tokens * 1e9 * billions * 1e9 / (gpus * rate * TB)
    obtained(f"{seconds / 86400:.1f}")
    assert seconds / 86400 == pytest.approx(days, rel=0.01)
