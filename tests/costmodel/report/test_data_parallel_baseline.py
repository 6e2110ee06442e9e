"""`nn.DataParallel` is never faster than a process each, and GPU 0 is the fullest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.offload import ZeroPlus
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.report.data_parallel_baseline import (
    PARTS,
    ComparedProcesses,
    compare_data_parallel,
)
from costmodel.simulation.estimator import estimate
from profiles.errors import Contradiction, Unsupported
from profiles.hardware.catalog import cluster
from profiles.models.param_count import parameters
from tests.golden.priced import job_of, machine_of
from tests.support.islands import joined

MESHWRIGHT = machine_of("meshwright")


def compared(
    name: str,
    gpus: int,
    on: Machine = MESHWRIGHT,
    *,
    micro_batches: int = 1,
    seq_len: int | None = None,
    optimizer: str = "adamw",
    **choice: Any,
) -> ComparedProcesses:
    uniform = Uniform(**{"zero": 0, "dp": gpus, **choice})
    batch = uniform.dp * uniform.micro_batch * micro_batches
    job = replace(job_of(name, batch, seq_len), optimizer=optimizer)
    layout = spell_out(uniform, job.graph, job.global_batch)
    found = estimate(job, on.cluster, layout, on=on)
    return compare_data_parallel(found, on)


@pytest.mark.row(
    "D1",
    "DataParallel slower than DDP, GPU 0 the fullest",
    expected="always",
    evidence="derived: gathers and scatters go through GPU 0",
)
@given(
    name=st.sampled_from(("gpt-tiny", "gpt-125m", "gpt-1.3b", "mixtral-8x7b")),
    where=st.sampled_from(("dgx-a100-80gb", "dgx-h100", "a100-pcie", "l40s-8x")),
    gpus=st.integers(2, 8),
    micro_batch=st.sampled_from((1, 2, 8)),
    micro_batches=st.integers(1, 4),
    precision=st.sampled_from(("bf16", "fp16", "amp-bf16", "fp32")),
    recompute=st.sampled_from(("none", "selective", "full")),
    optimizer=st.sampled_from(("adamw", "sgd")),
    zero=st.sampled_from((0, 1, 3)),
)
def test_it_is_slower_than_a_process_each_and_gpu_0_is_the_fullest(
    where: str, name: str, gpus: int, **asked: Any
) -> None:
    """PyTorch's documentation advises DistributedDataParallel even on one node."""
    found = compared(name, gpus, machine(cluster(where)), seq_len=256, **asked)
    single = found.single
    assert single.step_time_s > found.distributed.step_time_s
    assert single.first.needed > single.others.needed
    assert single.first.needed > found.distributed.memory[0].needed
    assert tuple(single.breakdown_s) == PARTS
    assert min(single.breakdown_s.values()) >= 0


def test_both_sum_gradients_in_the_weights_format_and_keep_all_states() -> None:
    """Whatever the layout that was asked about does."""
    found = compared(
        "gpt-350m",
        8,
        zero=3,
        zero_group=8,
        gradient_format="fp32",
        zero_plus=ZeroPlus(quantized_weights=True),
    )
    other = compared("gpt-350m", 8, zero=0, gradient_format="bf16")
    assert found.document() == other.document()
    count = parameters(job_of("gpt-350m", 8).spec).total
    assert found.distributed.memory[0].gradients == pytest.approx(2 * count)
    assert found.single.first.optimizer == pytest.approx(12 * count)
    assert found.single.others.optimizer == found.single.others.gradients == 0
    assert found.single.others.parameters == pytest.approx(2 * count)


@pytest.mark.parametrize("gpus", [2, 5, 8])
def test_weights_go_round_as_a_broadcast(gpus: int) -> None:
    """Gradients alike; each after a copy into buffers."""
    on, found = MESHWRIGHT, compared("gpt-1.3b", gpus)
    size = 2.0 * parameters(job_of("gpt-1.3b", 8).spec).total
    ranks = np.asarray(gpus)
    sent = on.collective("broadcast", np.asarray(size), ranks=ranks, near=ranks)
    copied = 2 * size / (on.rates.traffic.fraction * on.device.memory_bytes_per_s)
    expected = float(on.once_a_step(sent).seconds) + copied
    assert found.single.breakdown_s["reduce"] == pytest.approx(expected, rel=1e-3)


def test_replicas_of_experts_are_whole() -> None:
    dense, mixture = (
        compared(name, 4, seq_len=128).single.breakdown_s["reduce"]
        for name in ("mistral-7b", "mixtral-8x7b")
    )
    assert mixture / dense == pytest.approx(46.7 / 7.2, rel=0.03)


def test_one_interpreter_launches_all_forwards() -> None:
    """Where the host decides, twice the GPUs take twice as long forward, and as long
    backward, which autograd's own threads launch."""
    few, many = (
        compared("gpt-125m", gpus, seq_len=128).single.breakdown_s for gpus in (4, 8)
    )
    assert many["forward"] / few["forward"] == pytest.approx(2, rel=0.01)
    assert many["backward"] == pytest.approx(few["backward"], rel=1e-9)


def test_gpu_0_has_everybodys_logits() -> None:
    """In 16 bits as they are gathered, and the loss's softmax of them in fp32."""
    gpus, tokens, vocab = 8, 2 * 2048, 51200
    found = compared("gpt-1.3b", gpus, micro_batch=2).single
    more = found.first.activations - found.others.activations
    assert more == pytest.approx(gpus * tokens * vocab * (2 + 4))


def test_every_micro_batch_is_a_forward_of_its_own() -> None:
    once, twice = (
        compared("gpt-1.3b", 4, micro_batches=m).single.breakdown_s for m in (1, 2)
    )
    for name in PARTS[:-2]:
        assert twice[name] == pytest.approx(2 * once[name]), name
    assert twice["optimizer"] == pytest.approx(once["optimizer"])


def test_the_optimizer_is_one_gpus() -> None:
    job = job_of("gpt-1.3b", 1)
    alone = estimate(
        job,
        MESHWRIGHT.cluster,
        spell_out(Uniform(zero=0, gradient_format="bf16"), job.graph, 1),
        on=MESHWRIGHT,
    )
    step_s = compared("gpt-1.3b", 8).single.breakdown_s["optimizer"]
    assert step_s == pytest.approx(alone.breakdown_s["optimizer"])


def test_whole_gradients_are_the_peak_where_sequences_are_short() -> None:
    """A replica has its own when backward ends; GPU 0 their sum beside its own, and the
    one that the optimizer reads."""
    found = compared("gpt-1.3b", 8, seq_len=64).single
    size = 2.0 * parameters(job_of("gpt-1.3b", 8).spec).total
    assert found.others.transient == pytest.approx(size, rel=0.01)
    assert found.first.transient + found.first.gradients == pytest.approx(
        3 * size, rel=0.01
    )


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"gpus": 4, "tp": 2}, "leave --tp, --pp, --cp and --ep at 1"),
        ({"gpus": 4, "pp": 2}, "leave --tp, --pp, --cp and --ep at 1"),
        ({"gpus": 1}, "give --gpus 2 or more"),
        ({"gpus": 16}, "the 8 of dgx-a100-80gb; use DistributedDataParallel"),
    ],
)
def test_what_one_process_cannot_have_is_refused(
    choice: dict[str, Any], said: str
) -> None:
    with pytest.raises(Contradiction, match=said):
        compared("gpt-125m", **choice)


@pytest.mark.parametrize(
    ("on", "said"),
    [
        (machine_of("megatron-lm"), "leave --framework out"),
        (machine_of("meshwright", "cpu"), "name a --cluster of GPUs"),
        (machine_of("meshwright", "tpu-v4"), "name a --cluster of GPUs"),
        (machine(joined("dgx-a100", "dgx-h100")), "joins 2 islands; name one of them"),
    ],
)
def test_whose_it_is_not_is_refused(on: Machine, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        compared("gpt-tiny", 2, on, precision="fp32")
