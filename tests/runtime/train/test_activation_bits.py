"""Bits shared out by sensitivity: the same on all ranks, no more, and worth it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from profiles.models.spec import DecoderSpec
from runtime.data import source
from runtime.optim import LearningRate, Settings
from runtime.train.activation_bits import INTERVAL, ActivationBits
from runtime.train.build import Setup
from runtime.train.trainer import Trainer
from tests.golden.priced import job_of
from tests.runtime.ranks import on_ranks

BITS = 2
CASES = {
    "dp2": Uniform(dp=2, zero=0),
    "zero3": Uniform(dp=2, zero=3, zero_group=2, micro_batch=2),
    "pp2": Uniform(pp=2, zero=0, micro_batch=2),
    "tp2": Uniform(tp=2, zero=0, micro_batch=4),
}


def trainer_of(choice: Uniform) -> Trainer:
    job = job_of("gpt-tiny", 4, seq_len=32)
    assert isinstance(job.spec, DecoderSpec)
    small = replace(job.spec, layers=2, hidden=64, heads=2, kv_heads=2, ffn_hidden=256)
    job = replace(job, spec=small)
    chosen = replace(choice, precision="fp32", offload=Offload(compress=str(BITS)))
    layout = spell_out(chosen, job.graph, job.global_batch)
    return Trainer(
        job,
        layout,
        source("synthetic", vocab=job.spec.vocab, seq_len=job.seq_len, seed=0),  # type: ignore[union-attr]
        settings=Settings(),
        setup=Setup(seed=0, device=torch.device("cpu")),
        rate=LearningRate(lr=3e-4, steps=10, kind="constant"),
    )


def shared_out(rank: int, name: str) -> dict[str, Any]:
    trainer = trainer_of(CASES[name])
    bits = ActivationBits(trainer=trainer)
    assert bits.share_out(0)
    assert not bits.share_out(1)
    assert not bits.share_out(INTERVAL - 1)
    sizes = bits.sizes
    chosen = dict(bits.bits)
    exact = bits.gradients(0, dict.fromkeys(chosen, 16), draw=0)
    noise = {
        word: sum(
            trainer.distance(bits.gradients(0, some, draw=draw), exact)
            for draw in range(10, 18)
        )
        for word, some in (("equal", dict.fromkeys(chosen, BITS)), ("own", chosen))
    }
    bits.settle()
    loss = trainer.step(0).loss
    return {"bits": chosen, "sizes": sizes, "noise": noise, "loss": loss}


@pytest.mark.parametrize("name", CASES)
def test_bits_go_where_gradients_need_them(name: str) -> None:
    one, two = on_ranks(2, shared_out, name)
    assert one["bits"] == two["bits"]
    stages = {stage for stage, _ in one["bits"]}
    assert stages == ({0, 1} if name == "pp2" else {0})
    sizes = one["sizes"]
    used = sum(sizes[key] * bits for key, bits in one["bits"].items())
    assert used <= BITS * sum(sizes.values())
    assert used > 0.9 * BITS * sum(sizes.values())
    assert len(set(one["bits"].values())) > 1
    assert one["noise"]["own"] < one["noise"]["equal"]
    assert one["loss"] == pytest.approx(two["loss"])
