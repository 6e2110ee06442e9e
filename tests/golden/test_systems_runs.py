"""Days, total compute and utilisation of whole runs that papers print."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.options import RunOptions
from costmodel.simulation.flops import model_flops, total_compute_flops
from costmodel.training_run import BatchRamp, ramped, training
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Figure
from profiles.models.catalog import model
from profiles.models.param_count import parameters
from profiles.units import PFLOPS_DAY_FLOPS, TFLOPS
from tests.golden.priced import gpt, job_of, machine_of, priced
from tests.support.rows import Obtained


@pytest.mark.parametrize(
    ("name", "gpus", "degrees", "tokens", "tflops", "days"),
    [
        ("gpt-1t", 3072, {"tp": 8, "pp": 64, "dp": 6}, 450e9, 163, 84),
        ("gpt-175b", 1024, {"tp": 8, "pp": 16, "dp": 8}, 300e9, 140, 34),
    ],
)
def test_days_of_a_run_at_megatrons_rate(
    name: str,
    gpus: int,
    degrees: dict[str, int],
    tokens: float,
    tflops: float,
    days: int,
) -> None:
    """Section 5.1: 8TP/(nX), which leaves attention and vocabulary out, gives 83.9 and
    33.8 days; they are 1.4 % and 3 % of the executed FLOPs of these models."""
    found = priced(job_of(name, 1536), recompute="full", **degrees)
    rate = gpus * tflops * TFLOPS
    at_rate = replace(found, step_time_s=found.hardware_flops / rate)
    assert training(at_rate, RunOptions(tokens=tokens))["days"] == pytest.approx(
        days, rel=0.03
    )


# Brown et al. (2020), Table D.1: millions of parameters, billions of tokens, the share
# of the parameters that a token meets, petaflop/s-days.
TABLE_D1 = {
    "T5-Small": (60, 1000, 0.5, 2.08),
    "T5-Base": (220, 1000, 0.5, 7.64),
    "T5-Large": (770, 1000, 0.5, 26.7),
    "T5-3B": (3000, 1000, 0.5, 104),
    "T5-11B": (11000, 1000, 0.5, 382),
    "BERT-Base": (109, 250, 1, 1.89),
    "BERT-Large": (355, 250, 1, 6.16),
    "RoBERTa-Base": (125, 2000, 1, 17.4),
    "RoBERTa-Large": (355, 2000, 1, 49.3),
    "gpt-125m": (125, 300, 1, 2.60),
    "gpt-350m": (356, 300, 1, 7.42),
    "gpt-760m": (760, 300, 1, 15.8),
    "gpt-1.3b": (1320, 300, 1, 27.5),
    "gpt-2.7b": (2650, 300, 1, 55.2),
    "gpt-6.7b": (6660, 300, 1, 139),
    "gpt-13b": (12850, 300, 1, 268),
    "gpt-175b": (174600, 300, 1, 3640),
}


@pytest.mark.row("J2", "PF-days of all 17 rows", expected="Table D.1 (0.5 %)")
@pytest.mark.parametrize("name", TABLE_D1)
def test_total_compute_of_gpt_3_table_d1(name: str) -> None:
    """All 17 rows, within the rounding of their three digits."""
    millions, billions, met, petaflop_days = TABLE_D1[name]
    flops = total_compute_flops(met * millions * 1e6, billions * 1e9)
    assert flops / PFLOPS_DAY_FLOPS == pytest.approx(petaflop_days, rel=0.005)


def test_total_compute_of_the_preset_gpt_3() -> None:
    """3.14e23 FLOPs and 3,640 PF-days, from our own count of the parameters."""
    flops = total_compute_flops(parameters(model("gpt-175b").spec).total, 300e9)
    assert flops == pytest.approx(3.14e23, rel=0.01)
    assert flops / PFLOPS_DAY_FLOPS == pytest.approx(3640, rel=0.01)


GPT3 = [name for name in TABLE_D1 if name.startswith("gpt")]


@pytest.mark.row(
    "J2",
    "PF-days of GPT-3 in eight sizes",
    expected="2.60; 7.42; 15.8; 27.5; 55.2; 139; 268; 3640",
)
@pytest.mark.parametrize("name", GPT3)
def test_a_run_of_a_preset_says_its_total_compute(
    name: str, obtained: Obtained
) -> None:
    """Table D.1 by our own counts of parameters, which are within 1.5 % of the table's;
    products and attention counted one by one are 3 to 29 % more, less in large ones."""
    found = priced(job_of(name, 256), dp=8)
    total = training(found, RunOptions(tokens=300e9))["compute"]
    petaflop_days = TABLE_D1[name][3]
    assert total["by_parameters"]["pf_days"] == pytest.approx(petaflop_days, rel=0.015)
    obtained(f"{total['by_parameters']['pf_days']:.3g}")
    own = total["by_operators"]
    assert own["flops"] == pytest.approx(model_flops(found.job) * 300e9 / (256 * 2048))
    assert 1.02 < own["flops"] / total["by_parameters"]["flops"] < 1.30


PRESETS = {
    "t5-small": "T5-Small",
    "t5-base": "T5-Base",
    "t5-large": "T5-Large",
    "t5-3b": "T5-3B",
    "t5-11b": "T5-11B",
    "bert-base": "BERT-Base",
    "bert-large": "BERT-Large",
    "roberta-base": "RoBERTa-Base",
    "roberta-large": "RoBERTa-Large",
}


@pytest.mark.row(
    "J2",
    "PF-days of the presets of T5, BERT, RoBERTa",
    expected="2.08; 7.64; 26.7; 104; 382; 1.89; 6.16; 17.4; 49.3 (6 %)",
)
@pytest.mark.parametrize("name", PRESETS)
def test_presets_of_encoders_say_their_total_compute(
    name: str, obtained: Obtained
) -> None:
    """Table D.1 by our own counts of parameters: half of an encoder-decoder's meet a
    token. The table rounds T5's (738 M as 770, 2.85 B as 3), and counts BERT-Large at
    RoBERTa-Large's 355 M, 6 % above its own."""
    _, billions, _, petaflop_days = TABLE_D1[PRESETS[name]]
    found = priced(job_of(name, 256), dp=8)
    whole = training(found, RunOptions(tokens=billions * 1e9))
    total = whole["compute"]["by_parameters"]
    obtained(f"{total['pf_days']:.3g}")
    assert total["pf_days"] == pytest.approx(petaflop_days, rel=0.06)


def test_a_ramp_of_gpt_3_adds_the_ends_of_its_steps() -> None:
    """Brown et al. (2020), section 2.3 and appendix B: from 32 thousand tokens to 3.2
    million over 12 billion. A step of m micro-batches takes m·t + e, where e is what
    its pipeline waits at both ends and what the step ends with: so the ramp adds
    e · (Σ share / batch − samples / full batch), here 1.5 % of the run, 40 % of the
    days of those 12 billion tokens."""
    machine, samples, full, each = machine_of(), 12e9 / 2048, 1600, 8
    job = job_of("gpt-175b", full)
    found = priced(job, machine, tp=8, pp=16, dp=8, recompute="full")
    ramp = BatchRamp(start=16, increment=16, samples=round(samples))
    run = ramped(found, machine, ramp, 300e9)
    rising = [16 * number for number in range(1, 100)]
    slope = (run.step_time_s[1584] - run.step_time_s[16]) / (1584 - 16)
    ends_s = found.step_time_s - full * slope
    added_s = ends_s * (sum(samples / 99 / batch for batch in rising) - samples / full)
    level_s = 300e9 / job.tokens * found.step_time_s
    found_added = training(found, RunOptions(tokens=300e9), run)["rampup"]["added"]
    assert found_added == pytest.approx(added_s / level_s, rel=0.005)
    assert found_added == pytest.approx(0.015, abs=0.001)
    bubble_s = 15 * slope * each  # p − 1 micro-batches of equal stages
    ending_s = sum(found.breakdown_s[name] for name in ("data_comm", "optimizer"))
    assert ends_s == pytest.approx(bubble_s + ending_s, rel=0.03)


@pytest.mark.row(
    "E13",
    "MFU of 530 B on 2,240 A100, full; sequence parallel and selective",
    expected="42.1 %; 54.2 % (9 %)",
)
@pytest.mark.parametrize(("recompute", "mfu"), [("full", 0.421), ("selective", 0.542)])
def test_utilisation_of_530_billion_parameters_on_2240_gpus(
    recompute: str, mfu: float, obtained: Obtained
) -> None:
    """Korthikanti et al. (MLSys 2023), abstract: eight replicas of Table 5's third row,
    whose gradients cross the network; within the table's 9 %."""
    job = job_of("gpt-529.6b", 2240)
    found = priced(
        job,
        tp=8,
        pp=35,
        dp=8,
        schedule="interleaved",
        virtual_stages=3,
        recompute=recompute,
        sequence_parallel=recompute == "selective",
        flash_attention=False,
    )
    rate = model_flops(job) / found.step_time_s / (2240 * 312 * TFLOPS)
    obtained(f"{rate:.1%}")
    assert rate == pytest.approx(mfu, rel=0.09)


@pytest.mark.row(
    "E1",
    "8.3 B on 512 V100, t = 8, of linear scaling from 1.2 B on one",
    expected="76 % (70 to 80)",
    misses="one GPU is 1.5 times as fast as their 39 TFLOP/s",
)
@pytest.mark.xfail(reason="68 % of linear for 70 to 80")
def test_8_billion_parameters_on_512_gpus_scale_as_printed(obtained: Obtained) -> None:
    """Eight EDR ports a node of 16, 8 sequences a replica, every layer recomputed."""
    ports = Figure(value=800.0, unit="Gbit/s", source="8 EDR ports of 100 Gbit/s")
    node = cluster("dgx-2").with_bandwidth(inter=ports)
    where = machine(node, load_framework("megatron-lm-2021"))
    how = {
        "micro_batch": 8,
        "recompute": "full",
        "precision": "fp16",
        "flash_attention": False,
        "sequence_parallel": False,
    }
    one, many = (
        priced(gpt(*shape, tokens=1024), where, **how, **degrees)
        for shape, degrees in (
            ((40, 1536, 16, 8), {}),
            ((72, 3072, 32, 512), {"tp": 8, "dp": 64}),
        )
    )
    rates = [
        found.hardware_flops / found.step_time_s / gpus
        for found, gpus in ((one, 1), (many, 512))
    ]
    obtained(f"{rates[1] / rates[0]:.0%}")
    assert 0.70 <= rates[1] / rates[0] <= 0.80
