"""Layouts of catalogue models, priced; for golden tests."""

from __future__ import annotations

from typing import Any

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import Machine, machine
from costmodel.machine.framework import load_framework
from costmodel.simulation.estimator import Estimate, estimate
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec

A100 = "dgx-a100-80gb"


def job_of(name: str, global_batch: int, seq_len: int | None = None) -> Job:
    """The catalogue's model *name* on *global_batch* sequences a step."""
    found = model(name)
    return Job(
        model=name,
        spec=found.spec,
        seq_len=seq_len or found.seq_len,
        global_batch=global_batch,
    )


def gpt(layers: int, hidden: int, heads: int, batch: int, *, tokens: int = 2048) -> Job:
    """A GPT of Megatron-LM's papers on *batch* sequences of *tokens* a step."""
    spec = DecoderSpec(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn_hidden=4 * hidden,
        vocab=51200,
        max_positions=tokens,
    )
    return Job(model="gpt", spec=spec, seq_len=tokens, global_batch=batch)


def layout_of(job: Job, choice: Uniform) -> Layout:
    return spell_out(choice, job.graph, job.global_batch)


def machine_of(framework: str = "megatron-lm", on: str = A100) -> Machine:
    return machine(cluster(on), load_framework(framework))


def priced(job: Job, where: Machine | None = None, /, **choice: Any) -> Estimate:
    """The price of a uniform layout; without ZeRO unless *choice* says so."""
    where = where or machine_of()
    layout = layout_of(job, Uniform(**{"zero": 0, **choice}))
    return estimate(job, where.cluster, layout, on=where)
