"""Memory that papers print: activations in flight, states, and what fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from costmodel.batched.pricing import price
from costmodel.layout.retention import preset
from costmodel.layout.strategy import Columns, Uniform
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import tensor_bytes
from costmodel.schedule.schedules import peak_in_flight
from costmodel.simulation.estimator import Estimate
from costmodel.stages.block_cost import atom, block_prices
from costmodel.stages.data_parallelism import DataParallel
from costmodel.stages.device_memory import (
    PeakContents,
    Process,
    StatePolicy,
    memory,
)
from costmodel.support.legality import violations
from profiles.hardware.catalog import cluster, device
from profiles.hardware.precisions import precision
from profiles.models.graph import PRODUCTS, Kind
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from profiles.units import GB, GiB
from tests.golden.priced import job_of, machine_of, priced
from tests.support.rows import Obtained

TP = 8
# Korthikanti et al. (MLSys 2023), Figure 1, t = 8: (p, v, b), GiB of activations on the
# first stage without and with both techniques, GiB of parameters and optimizer.
FIGURE_1 = {
    "gpt-22b": ((1, 1, 4), (59.25, 9.5625), 45.56),
    "gpt-175b": ((8, 3, 1), (66.84, 12.35), 45.56),
    "gpt-529.6b": ((35, 3, 1), (114.02, 23.08), 31.64),
    "gpt-1t": ((64, 1, 1), (131.25, 26.5625), 32.96),
}
TECHNIQUES = (("none", False), ("selective", True))  # recompute, sequence parallel


def layer_price(name: str, micro_batch: int, recompute: str, sp: bool) -> Any:
    """One layer of *name* on a rank of eight."""
    block = job_of(name, 8).graph.block("layer")
    degrees = Degrees(
        tp=np.asarray(TP),
        cp=np.asarray(1),
        micro_batch=np.asarray(micro_batch),
        seq_len=2048,
        sequence_parallel=sp,
        flash_attention=False,
    )
    policy = precision("fp16")
    assert block.entry is not None
    entry = tensor_bytes(block.entry, block, degrees, policy)
    prices = block_prices(block, degrees, policy, machine_of())
    return atom(block, prices, preset(recompute, block), entry)


def schedule_of(stages: int, virtual: int) -> str:
    return "interleaved" if virtual > 1 else "1f1b"


@pytest.mark.row(
    "E13",
    "Figure 1: GiB of activations, as its formula",
    expected="to 0.05 %",
    evidence="computed",
)
@pytest.mark.parametrize("name", FIGURE_1)
def test_activations_of_figure_1(name: str) -> None:
    """Layers in flight on rank 0 times what one saves: L(1 + (p − 1)/(pv)) of them."""
    (p, v, b), wanted, _ = FIGURE_1[name]
    chunk = job_of(name, 8).graph.body // (p * v)
    alive = int(peak_in_flight(schedule_of(p, v), 0, p, v, 10 * p))
    found = [
        alive * chunk * float(layer_price(name, b, *how).saved_bytes) / GiB
        for how in TECHNIQUES
    ]
    assert found == pytest.approx(wanted, rel=5e-4)


@pytest.mark.parametrize("name", FIGURE_1)
def test_a_whole_estimate_adds_the_ends_to_figure_1(name: str) -> None:
    """The figure leaves out the embedding's dropout mask and, with one stage, final
    norm, logits and loss."""
    (p, v, b), wanted, _ = FIGURE_1[name]
    job = job_of(name, 4 * p)
    for (recompute, sp), layers_gib in zip(TECHNIQUES, wanted, strict=True):
        found = priced(
            job,
            tp=TP,
            pp=p,
            virtual_stages=v,
            schedule=schedule_of(p, v),
            micro_batch=b,
            recompute=recompute,
            sequence_parallel=sp,
            flash_attention=False,
        )
        ratio = float(found.memory[0].activations) / GiB / layers_gib
        assert 0.999 < ratio < 1.03


@pytest.mark.parametrize("name", FIGURE_1)
def test_states_of_figure_1(name: str) -> None:
    """18 bytes for each of 12Lh² parameters over tp × pp; biases and norms, which ours
    count, are 13h beside 12h²."""
    (p, _, b), _, wanted = FIGURE_1[name]
    layers = job_of(name, 8).graph.body // p
    count = layers * layer_price(name, b, "none", False).parameters
    alone = DataParallel(
        tp=np.asarray(TP),
        cp=np.asarray(1),
        dp=np.asarray(1),
        zero=np.asarray(0),
        zero_group=np.asarray(1),
    )
    found = memory(
        PeakContents(
            parameters=count,
            gathered_bytes=np.zeros(()),
            activation_bytes=np.zeros(()),
            transient_bytes=np.zeros(()),
        ),
        policy=StatePolicy(precision=precision("fp16"), moments=2),
        process=Process(device=machine_of().device, ranks=np.asarray(TP * p)),
        parallel=alone,
    )
    states = float(found.parameters + found.gradients + found.optimizer)
    assert states / GiB == pytest.approx(wanted, rel=1e-3)


@pytest.mark.row(
    "H4", "GB of activations in flight, none; cheap-ops", expected="54.7; 32.9 (10 %)"
)
@pytest.mark.parametrize(
    ("recompute", "counted", "measured"),
    [("none", 50.7, 54.7), ("cheap-ops", 35.9, 32.9)],
)
def test_activations_in_flight_of_llama_65b(
    recompute: str, counted: float, measured: float, obtained: Obtained
) -> None:
    """Yuan et al. (ATC 2024), s = 8192, t2 c2 p8, two layers a virtual stage: how much
    `max_memory_allocated` falls as all activations are offloaded, GB; 10 %."""
    found = priced(
        job_of("llama-65b", 256, 8192),
        machine_of("megatron-core"),
        tp=2,
        cp=2,
        pp=8,
        virtual_stages=5,
        schedule="interleaved",
        recompute=recompute,
        sequence_parallel=True,
    )
    activations = float(found.memory[0].activations) / GB
    obtained(f"{activations:.1f}")
    assert activations == pytest.approx(counted, rel=0.005)
    assert activations == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("kind", ["ring", "all-gather", "ulysses", "rsa"])
def test_context_parallelism_splits_tokens_and_not_weights(kind: str) -> None:
    """Li et al. (ACL 2023): each of c ranks has s/c tokens and all the weights."""
    job, where = job_of("llama3-8b", 8), machine_of("megatron-core")
    how = {"cp_kind": kind, "flash_attention": kind != "rsa"}
    one, four = (priced(job, where, cp=cp, **how) for cp in (1, 4))
    saved, quarter = (float(item.memory[0].activations) for item in (one, four))
    assert quarter == pytest.approx(saved / 4, rel=1e-9)
    assert float(four.memory[0].parameters) == float(one.memory[0].parameters)
    assert one.breakdown_s["context_comm"] == 0
    assert (four.breakdown_s["context_comm"] > 0) == (kind != "ring")  # it hides


def smallest_peak_bytes(gpus: int) -> float:
    """The least memory of any legal layout of the 1 T model on *gpus* V100s of 32 GB,
    full recompute, 16 bytes a parameter, no offload."""
    where = machine_of("deepspeed", on="dgx-v100-32gb")
    job = job_of("gpt-1t", 2400, 1024)
    rows = [
        Uniform(
            tp=tp,
            pp=pp,
            dp=gpus // (tp * pp),
            zero=zero,
            zero_group=gpus // (tp * pp) if zero else 1,
            sequence_parallel=tp > 1,
            recompute="full",
            flash_attention=False,
            precision="fp16",
            gradient_format="fp16",
        )
        for tp, pp, zero in product((1, 2, 4, 8, 16, 32), range(1, 129), range(4))
        if gpus % (tp * pp) == 0
    ]
    legal = [row for row in rows if not list(violations(row, job, where.cluster))]
    return float(price(Columns.of(legal), job, where).needed_bytes.min())


@pytest.mark.row("I7", "1 T parameters fit on 800 V100; on 600", expected="yes; no")
def test_a_trillion_parameters_need_800_v100s_and_not_600() -> None:
    """DeepSpeed's announcement (2020): 1 T parameters on 800 V100s of 32 GB. The
    columns' peak is a lower bound, within 2 % of the estimate."""
    capacity = machine_of(on="dgx-v100-32gb").device.capacity_bytes
    assert smallest_peak_bytes(800) * 1.02 < capacity < smallest_peak_bytes(600)


def fits_on_v100s(tp: int, zero: int, heads: int) -> bool:
    """Turing-NLG's 17 B (78 layers of 4256, s = 1024) on V100s of 32 GB, 512 sequences
    over 64 replicas, full recompute."""
    spec = DecoderSpec(
        layers=78,
        hidden=4256,
        heads=heads,
        kv_heads=heads,
        head_dim=4256 // heads,
        ffn_hidden=4 * 4256,
        vocab=51200,
        max_positions=1024,
        dropout=0.1,
    )
    return priced(
        Job(model="turing-nlg", spec=spec, seq_len=1024, global_batch=512),
        machine_of("deepspeed", on="dgx-v100-32gb"),
        tp=tp,
        dp=64,
        micro_batch=8,
        zero=zero,
        zero_group=64 if zero else 1,
        recompute="full",
        flash_attention=False,
        sequence_parallel=False,
        precision="fp16",
    ).fits


@pytest.mark.row("I7", "t of Turing-NLG with ZeRO; without", expected="4; 16")
def test_zero_takes_a_quarter_of_turings_tensor_parallelism() -> None:
    """ZeRO's announcement (2020): 512 sequences on 256 GPUs, t = 4, where 1,024 GPUs
    and t = 16 were needed. (28 heads; 16 ranks share 32, of as many bytes.)"""
    assert fits_on_v100s(tp=4, zero=1, heads=28)
    assert not fits_on_v100s(tp=4, zero=0, heads=28)
    assert fits_on_v100s(tp=16, zero=0, heads=32)


# Li et al. (ACL 2023): BERT-Base, 16 GB P100s; tensor parallelism ends at 12 heads.
RSA = {"cp": 64, "cp_kind": "rsa"}
TENSOR = {"tp": 12}
_NODES = cluster("v100-32gb-ib")
P100S = machine(
    replace(
        _NODES,
        islands=tuple(replace(one, device=device("p100")) for one in _NODES.islands),
    ),
    load_framework("megatron-lm-2021"),
)


def bert_base(sequences: int, seq_len: int, dropout: float = 0.1) -> Job:
    """A decoder of BERT-Base's shape: where scores are stored, a mask saves no byte."""
    spec = DecoderSpec(
        layers=12,
        hidden=768,
        heads=12,
        kv_heads=12,
        head_dim=64,
        ffn_hidden=3072,
        vocab=30522,
        max_positions=seq_len,
        dropout=dropout,
    )
    return Job(model="bert-base", spec=spec, seq_len=seq_len, global_batch=sequences)


@pytest.mark.parametrize(
    ("split", "own", "whole"), [({"cp": 64}, 10 / 64, 0.0), ({"tp": 12}, 8 / 12, 2.0)]
)
def test_what_products_keep_is_rsas_formulas(
    split: dict[str, int], own: float, whole: float
) -> None:
    """An MLP 5BLH/N and attention 4BZLA/N + BZL²/N + BLH/N elements; under tensor
    parallelism 4BLH/N + BLH and 4BZLA/N + BZL²/N + BLH."""
    sequences, seq_len, hidden, heads = 4, 768, 768, 12
    block = bert_base(sequences, seq_len, dropout=0.0).graph.block("layer")
    degrees = Degrees(
        tp=np.asarray(split.get("tp", 1)),
        cp=np.asarray(split.get("cp", 1)),
        micro_batch=np.asarray(sequences),
        seq_len=seq_len,
        sequence_parallel=False,
        cp_kind="rsa",
        flash_attention=False,
    )
    prices = block_prices(block, degrees, precision("fp32"), machine_of())
    kept: dict[str, Any] = {}
    for item in block.operators:
        if item.kind in (*PRODUCTS, Kind.ATTENTION):
            kept |= prices[item.name].saved | prices[item.name].internal
    ranks = max(split.values())
    stream, scores = sequences * seq_len * hidden, sequences * heads * seq_len**2
    assert sum(kept.values()) / 4 == (own + whole) * stream + scores / ranks


def of_bert(sequences: int, seq_len: int, **split: Any) -> Estimate:
    """In fp16, as the authors' released configuration."""
    return priced(
        bert_base(sequences, seq_len),
        P100S,
        micro_batch=sequences,
        flash_attention=False,
        precision="fp16",
        **split,
    )


def most(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, where each smaller one does."""
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@pytest.mark.row(
    "E14",
    "largest batch; longest sequence, over tensor parallelism",
    misses="what does not shrink with RSA",
    expected="13.7; 3.0 (20 %)",
)
def test_rsa_trains_larger_batches_and_three_times_as_long_sequences(
    obtained: Obtained,
) -> None:
    """13.7 times the batch (L = 512) and 3.0 times the sequence (B = 64) on 64 P100s.
    What a sequence keeps is within 20 % of the first and the sequences of the second;
    the batch comes out at 10, a quarter less: weights, logits and the gradient of all
    keys, which do not shrink so."""
    ways = (RSA, TENSOR)
    kept = [float(of_bert(64, 512, **way).memory[0].activations) for way in ways]
    assert kept[1] / kept[0] == pytest.approx(13.7, rel=0.2)
    batches = [most(partial(_fits_so_many, way)) for way in ways]
    assert 9.9 < batches[0] / batches[1] < 13.7
    tokens = [most(partial(_fits_so_long, way)) for way in ways]
    obtained(f"{batches[0] / batches[1]:.1f}; {tokens[0] / tokens[1]:.1f}")
    assert tokens[0] / tokens[1] == pytest.approx(3.0, rel=0.2)


def _fits_so_many(way: dict[str, Any], sequences: int) -> bool:
    return of_bert(sequences, 512, **way).fits


def _fits_so_long(way: dict[str, Any], times_64: int) -> bool:
    return of_bert(64, 64 * times_64, **way).fits
