"""Models of a Hugging Face configuration train as Hugging Face's own do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation import layout_files as stored
from costmodel.simulation.layout_files import read_layout_file, write_layout
from costmodel.support.support_table import refusals
from profiles.errors import Unsupported
from profiles.models.job import Job
from profiles.models.spec import USUAL, DecoderSpec
from runtime.launch.run import prepare
from runtime.models.decoder import Stage, decoder_of
from tests.runtime.ranks import on_ranks
from tests.runtime.run_options import run_options
from tests.support.blocks import along_sequences
from tests.support.foreign_models import (
    BATCH,
    CONFIGS,
    DP,
    FP32,
    LAYOUTS,
    SEQ_LEN,
    as_ours,
    first_steps,
    foreign,
    job_of,
    logits_of,
    trained_foreign,
    trained_ours,
    trainer_of,
    write_weights,
)

STEPS = 20
LOSS, NORM = 1e-5, 1e-5  # nats, and relative
SHOWN = 2e-4  # of a logit, by a constant that is not read; rounding makes 2e-6
SP = replace(FP32, tp=2, sequence_parallel=True)
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
    assert shown
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


# Where constants are computed in other code, or gradients made at another time.
MECHANISMS = {
    "expert parallel": replace(DP, ep=2),
    "experts' width": replace(SP, etp=2),
    "ring": replace(FP32, cp=2, zero=0),
    "ulysses": replace(FP32, cp=2, zero=0, cp_kind="ulysses"),
    "split backward": replace(FP32, pp=2, schedule="zb-h1"),
    "split backward, shards": replace(
        FP32, dp=2, pp=2, zero=3, zero_group=2, schedule="zb-h1"
    ),
    "by name": replace(SP, recompute="cheap-ops"),
    "by full layers": replace(DP, zero=3, zero_group=2, recompute="full"),
}
MIXED = ["qwen2_moe", "qwen3_moe-normed", "llama4", "dbrx-normed"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", sorted({one.gpus for one in MECHANISMS.values()}))
def test_experts_start_alike_by_every_mechanism(ranks: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    seen = first_steps(MIXED, ranks, tmp_path, MECHANISMS)
    assert seen
    for key, apart in seen.items():
        assert apart.loss < LOSS, key
        assert apart.norm < NORM, key


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_constants_hold_where_operators_are_split_by_themselves(
    name: str, tmp_path: Path
) -> None:
    """Queries and keys are turned in code of its own there."""
    pytest.importorskip("transformers")
    theirs = trained_foreign(name, 1)
    write_weights(name, theirs["start"], tmp_path / name)
    for ours in on_ranks(2, by_modules, name, str(tmp_path / name)):
        assert abs(ours[0] - theirs["losses"][0]) < LOSS
        assert abs(ours[1] / theirs["norms"][0] - 1) < NORM


def by_modules(rank: int, name: str, folder: str) -> tuple[float, float]:
    job = job_of(name)
    layout = spell_out(replace(FP32, tp=2, micro_batch=2), job.graph, BATCH)
    modules = along_sequences(job.graph.block("layer"))
    trainer = trainer_of(job, layout.sharded(dict.fromkeys("01", modules)), folder)
    seen = trainer.step(0)
    return seen.loss, seen.gradient_norm


def test_a_chunk_shorter_than_the_sequence_is_refused() -> None:
    known = job_of("llama4")
    assert isinstance(known.spec, DecoderSpec)
    for longest, refused in ((SEQ_LEN, False), (SEQ_LEN - 1, True)):
        numerics = replace(known.spec.numerics, longest=longest)
        job = replace(known, spec=replace(known.spec, numerics=numerics))
        said = refusals(spell_out(ALONE, job.graph, BATCH), job)
        assert bool(said) is refused
        with pytest.raises(Unsupported) if refused else nullcontext():
            decoder_of(job)


def test_what_is_not_computed_is_refused_by_name_and_priced() -> None:
    named = ("rope_scaling yarn",)
    known = job_of("llama").spec
    assert isinstance(known, DecoderSpec)
    spec = replace(known, numerics=replace(known.numerics, not_computed=named))
    job = Job(model="mine", spec=spec, seq_len=32, global_batch=BATCH)
    (reason,) = refusals(spell_out(ALONE, job.graph, BATCH), job)
    assert reason.startswith("configuration (not computed rope_scaling yarn): ")
    with pytest.raises(Unsupported, match="rope_scaling yarn"):
        decoder_of(job)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_whole_in_the_layout_file(name: str, tmp_path: Path) -> None:
    file, job = tmp_path / "layout.json", job_of(name)
    write_layout(file, job, "cpu", spell_out(ALONE, job.graph, BATCH))
    assert stored.job_of(read_layout_file(file)) == job


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_what_attention_dropout_costs_a_cpu_is_said(
    share: float, tmp_path: Path
) -> None:
    known = job_of("gpt2")
    assert isinstance(known.spec, DecoderSpec)
    numerics = replace(known.spec.numerics, attention_dropout=share)
    job = replace(known, spec=replace(known.spec, numerics=numerics))
    file = tmp_path / "layout.json"
    write_layout(file, job, "cpu", spell_out(ALONE, job.graph, BATCH))
    said = " ".join(prepare(run_options(file)).limits)
    assert ("stores its scores on a CPU" in said) is bool(share)


def test_dropout_of_a_gpt2_configuration_is_trained() -> None:
    """The softmax, the embedding and each residual by shares of their own."""
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
def test_what_was_dropped_is_dropped_again(recompute: str, alone: None) -> None:
    """Of the same seed: a recomputed attention has the masks of the first."""
    known = job_of("gpt2")
    assert isinstance(known.spec, DecoderSpec)
    shares = replace(known.spec.numerics, attention_dropout=0.3)
    job = replace(known, spec=replace(known.spec, numerics=shares))
    seen = []
    for again in ("none", recompute):
        choice = replace(ALONE, recompute=again)
        trainer = trainer_of(job, spell_out(choice, job.graph, BATCH))
        steps = [trainer.step(number) for number in range(3)]
        seen.append([value for one in steps for value in (one.loss, one.gradient_norm)])
    assert seen[1] == pytest.approx(seen[0], rel=1e-6)
