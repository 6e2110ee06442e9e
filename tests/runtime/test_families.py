"""Models of a Hugging Face configuration train as Hugging Face's own do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from costmodel.support import refusals
from costmodel.uniform import Uniform, spell_out
from profiles.job import Job
from profiles.models.numerics import USUAL
from profiles.models.spec import DecoderSpec
from tests.foreign_models import (
    BATCH,
    CONFIGS,
    LAYOUTS,
    as_ours,
    first_steps,
    foreign,
    job_of,
    logits_of,
    trained_foreign,
    trained_ours,
    write_weights,
)

STEPS = 20
LOSS, NORM = 1e-5, 1e-5  # nats, and relative
SHOWN = 2e-4  # of a logit, by a constant that is not read; rounding makes 2e-6
ALONE = Uniform(precision="fp32", micro_batch=BATCH)
# What no loss of a first step shows, or what configurations here leave as it is.
UNSEEN = {"balance", "longest", "attention_dropout", "embedding_dropout"}


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_family_trains_as_its_own_implementation(
    name: str, alone: None, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    theirs = trained_foreign(name, STEPS)
    write_weights(name, theirs["start"], tmp_path / name)
    (ours,) = trained_ours(0, [(name, ALONE)], STEPS, str(tmp_path))
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=0, abs=LOSS)
    assert ours["norms"] == pytest.approx(theirs["norms"], rel=NORM)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_constant_of_a_family_shows(name: str) -> None:
    """Else the test before could not tell whether it is read."""
    pytest.importorskip("transformers")
    weights, spec = as_ours(name, foreign(name)), job_of(name).spec
    assert isinstance(spec, DecoderSpec)
    right = logits_of(spec, weights)
    changed = {one.name for one in fields(USUAL)} - UNSEEN
    shown = [one for one in changed if _differs(spec, one)]
    assert "norm_epsilon" in shown
    for field in shown:
        numerics = replace(spec.numerics, **{field: getattr(USUAL, field)})
        wrong = logits_of(replace(spec, numerics=numerics), weights)
        assert float((wrong - right).abs().max()) > SHOWN, field


def _differs(spec: DecoderSpec, field: str) -> bool:
    return bool(getattr(spec.numerics, field) != getattr(USUAL, field))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", sorted({one.gpus for one in LAYOUTS.values()}))
def test_a_family_starts_alike_in_every_layout(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    seen = first_steps(list(CONFIGS), ranks, tmp_path)
    assert {name for name, _ in seen} == set(CONFIGS)
    for key, apart in seen.items():
        assert apart.loss < LOSS, key
        assert apart.norm < NORM, key


def test_what_is_not_computed_is_refused_by_name_and_priced() -> None:
    named = ("rope_scaling yarn",)
    known = job_of("llama").spec
    assert isinstance(known, DecoderSpec)
    spec = replace(known, numerics=replace(known.numerics, not_computed=named))
    job = Job(model="mine", spec=spec, seq_len=32, global_batch=BATCH)
    (reason,) = refusals(spell_out(ALONE, job.graph, BATCH), job)
    assert reason.startswith("configuration (not computed rope_scaling yarn): ")
    with pytest.raises(Exception, match="rope_scaling yarn") as caught:
        logits_of(spec, {})
    assert type(caught.value).__name__ == "Unsupported"


def test_dropout_of_a_gpt2_configuration_is_trained() -> None:
    """The softmax, the embedding and each residual by shares of their own."""
    from runtime.modules.decoder import Stage

    known = job_of("gpt2").spec
    assert isinstance(known, DecoderSpec)
    shares = replace(known.numerics, attention_dropout=0.25, embedding_dropout=0.5)
    spec = replace(known, dropout=0.1, numerics=shares)
    stage = Stage(spec, ["embedding", "0"])
    layer: Any = stage.layers["0"]
    embedding: Any = stage.embedding
    found = (layer.attention.core.share, embedding.dropout.share, layer.dropout.share)
    assert found == (0.25, 0.5, 0.1)
    torch.manual_seed(0)
    value = torch.ones(1, 1, 512, 512)
    kept = layer.attention.core(0 * value, 0 * value, value)[0, 0, -1, 0]
    assert float(kept) != 1.0  # a mean of 512, a quarter of them dropped
    assert math.isclose(float(kept), 1.0, abs_tol=0.15)
    layer.eval()
    whole = layer.attention.core(0 * value, 0 * value, value)
    torch.testing.assert_close(whole, value)


@pytest.mark.parametrize("recompute", ["selective", "full", "attention"])
def test_what_was_dropped_is_dropped_again(
    recompute: str, alone: None, tmp_path: Path
) -> None:
    """Of the same seed: a recomputed attention has the masks of the first."""
    from runtime.trainer import Trainer
    from tests.foreign_models import ADAMW, data

    known = job_of("gpt2")
    assert isinstance(known.spec, DecoderSpec)
    shares = replace(known.spec.numerics, attention_dropout=0.3)
    job = replace(known, spec=replace(known.spec, numerics=shares))
    seen = []
    for again in ("none", recompute):
        choice = replace(ALONE, recompute=again)
        trainer = Trainer(
            job,
            spell_out(choice, job.graph, BATCH),
            data(),
            settings=ADAMW,
            seed=1,
            device=torch.device("cpu"),
        )
        steps = [trainer.step(number) for number in range(3)]
        seen.append([value for one in steps for value in (one.loss, one.gradient_norm)])
    assert seen[1] == pytest.approx(seen[0], rel=1e-6)
