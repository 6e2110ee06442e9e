"""On a machine on which everything takes twice as long, so does every step."""

from __future__ import annotations

import shlex
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import Machine
from costmodel.options import Pins, layout_options
from costmodel.simulation.estimator import Estimate, estimate
from costmodel.simulation.pricing import from_options
from profiles.commandline import JobOptions, job_options
from profiles.commandline.options import from_keywords
from tests.support.sampled import job, on

times = st.floats(0.5, 2.0)
QUESTIONS = (
    "model=gpt-1.3b gpus=8 cluster=dgx-a100-80gb tp=2 pp=2",
    "model=gpt-1.3b gpus=16 cluster=dgx-v100-32gb tp=4 pp=2 flash_attention=False",
    "model=gpt-1.3b gpus=32 cluster=dgx-h100 zero=3 framework=fsdp2 recompute=full",
    "model=gpt-13b gpus=64 cluster=dgx-h100 tp=8 pp=4 virtual_stages=2 overlap=tp",
    "model=gpt-13b gpus=16 cluster=dgx-b200 tp=4 precision=mxfp8",
    "model=gpt-1.3b gpus=16 cluster=a100-pcie tp=2 precision=fp32 cp=2",
    "model=gpt-1.3b gpus=16 cluster=dgx-h100 cp=8 cp_kind=ulysses seq_len=32768",
    "model=gpt-13b gpus=8 cluster=dgx-a100-40gb offload=optimizer zero=2",
    "model=gpt-13b gpus=8 cluster=dgx-a100-40gb zero=3 offload=optimizer,parameters",
    "model=gpt-6.7b gpus=8 cluster=dgx-a100-40gb offload=optimizer offload_to=nvme",
    "model=gpt-1.3b gpus=8 pp=4 schedule=zb-v recompute=selective",
    "model=gpt-1.3b gpus=8 pp=2 offload=activations=0.5 recompute=selective",
    "model=mixtral-8x7b gpus=64 cluster=dgx-h100 ep=8 pp=4 imbalance=1.3",
    "model=deepseek-v2-lite gpus=16 cluster=hgx-h200 ep=8 precision=fp8",
    "model=gpt-1.3b gpus=16 cluster=p4d.24xlarge zero=2 framework=megatron-deepspeed",
)


@cache
def asked(words: str) -> tuple[Machine, Estimate]:
    """The machine of a question, and its estimate."""
    options = dict(word.split("=", 1) for word in shlex.split(words))
    values = {
        k: v == "True" if v in ("True", "False") else v for k, v in options.items()
    }
    found = from_options(
        *from_keywords(values, {JobOptions: job_options, Pins: layout_options})
    )
    return found.on, found.estimate


@pytest.mark.parametrize("words", QUESTIONS)
@pytest.mark.parametrize("pace", [0.7, 1.6])
def test_a_slower_machine_takes_so_many_times_as_long(words: str, pace: float) -> None:
    on, once = asked(words)
    slow = estimate(once.job, on.cluster, once.layout, on=on.paced(pace))
    assert slow.step_time_s == pytest.approx(once.step_time_s * pace, rel=1e-9)
    for part, seconds in once.breakdown_s.items():
        wanted = pytest.approx(seconds * pace, rel=1e-6, abs=1e-9)
        assert slow.breakdown_s[part] == wanted, part
    assert slow.peak_memory_bytes == once.peak_memory_bytes
    assert slow.peak_flops_per_s == once.peak_flops_per_s


@given(times)
def test_samples_take_so_many_times_as_long(pace: float) -> None:
    where, trained = on(), job()
    choice = Uniform(tp=2, dp=2, micro_batch=2, precision="fp32", zero=1, zero_group=2)
    layout = spell_out(choice, trained.graph, trained.global_batch)
    once = estimate(trained, where.cluster, layout, on=where)
    slow = estimate(trained, where.cluster, layout, on=where.paced(pace))
    assert slow.step_time_s == pytest.approx(once.step_time_s * pace, rel=1e-6)


def test_paces_multiply_and_go_along_to_other_clusters() -> None:
    where, _ = asked(QUESTIONS[0])
    assert where.paced(1.0) is where
    twice = where.paced(1.25).paced(1.6)
    assert twice.pace == pytest.approx(2.0)
    again = where.paced(2.0).of(where.cluster)
    assert again.links == where.paced(2.0).links
    assert again.rates.matmul == where.paced(2.0).rates.matmul
