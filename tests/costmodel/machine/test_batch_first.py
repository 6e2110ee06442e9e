"""What lies (batch, sequence, hidden) is copied where it is cut along the sequence."""

from __future__ import annotations

import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.simulation.estimator import estimate
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

CLUSTER = cluster("dgx-a100-80gb")
JOB = Job(model="gpt-1.3b", spec=model("gpt-1.3b").spec, seq_len=2048, global_batch=16)


def tensor_s(micro_batch: int, *, batch_first: bool, sequence_parallel: bool) -> float:
    """Seconds of tensor parallel communication in a step."""
    used = load_framework("meshwright").variant(kernels={"batch_first": batch_first})
    choice = Uniform(
        tp=4, dp=1, micro_batch=micro_batch, sequence_parallel=sequence_parallel
    )
    layout = spell_out(choice, JOB.graph, JOB.global_batch)
    found = estimate(JOB, CLUSTER, layout, on=machine(CLUSTER, used))
    return found.breakdown_s["tensor_comm"]


def test_several_sequences_are_copied_into_place() -> None:
    plain = tensor_s(4, batch_first=False, sequence_parallel=True)
    assert tensor_s(4, batch_first=True, sequence_parallel=True) > plain * 1.01


@pytest.mark.parametrize(("micro_batch", "sequence_parallel"), [(1, True), (4, False)])
def test_one_sequence_and_whole_sequences_are_not(
    micro_batch: int, sequence_parallel: bool
) -> None:
    plain = tensor_s(
        micro_batch, batch_first=False, sequence_parallel=sequence_parallel
    )
    found = tensor_s(micro_batch, batch_first=True, sequence_parallel=sequence_parallel)
    assert found == plain
