"""Published times and bytes of single transformer layers, beside their price.

    Korthikanti (2022), table 4      a 22 B layer on A100s, tp 8, five techniques
    Aceso's profiles                 GPT layers on V100s: the sum of what was timed
                                     operator by operator, tp 1 to 8
    Galvatron's profiles             a Llama 2 7 B layer on "A100-class" devices:
                                     forward by batch; bytes kept by tp, all in 32 bits

Read from layer_times.csv and mem_facts.csv. Nothing is fitted here; Aceso's products,
GELU and dropout are among the samples of the V100's rates.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.fit.layer_price import layer_price
from benchmarks.fit.published import rows
from benchmarks.fit.published_aceso import profiled
from costmodel.machine.assembly import machine
from costmodel.machine.framework import load_framework
from costmodel.stages.block_cost import Atom
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.decoder import decoder_graph
from profiles.models.graph import Block
from profiles.models.spec import DecoderSpec
from profiles.units import MS, MiB

SEQUENCE: Final = 2048
# Fourteen operators each way that take less than 0.2 ms, which is what Aceso's module
# calls alone can take, make 5.6 ms: of twice that the device takes the larger part.
HOST_BOUND_S: Final = 11e-3
# Korthikanti's rows: recompute and sequence parallelism.
TECHNIQUES: Final = {
    "baseline": ("none", False),
    "sequence parallel": ("none", True),
    "full recompute": ("full", False),
    "selective recompute": ("selective", False),
    "sequence parallel + selective": ("selective", True),
}
_TRUNCATED: Final = re.compile(r"Llama2-7B (\d) layers, bsz (\d+), seq 2048")
_OF_A_LAYER: Final = "layertype_0_sp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Seconds or bytes of one layer, *measured* and *priced*."""

    source: str
    what: str
    measured: float
    priced: float

    @property
    def error(self) -> float:
        return self.priced / self.measured - 1


def layers(folder: Path) -> Iterator[Layer]:
    """Every published layer that is priced; raises InvalidFile without the tables."""
    yield from _korthikanti(folder)
    yield from _aceso(folder)
    yield from _galvatron_times(folder)
    yield from _galvatron_bytes(folder)


def gpt_layer(hidden: int, heads: int) -> Block:
    """A GPT layer with dropout, as Megatron trains it."""
    spec = DecoderSpec(
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn_hidden=4 * hidden,
        vocab=51200,
        max_positions=SEQUENCE,
        dropout=0.1,
    )
    return decoder_graph(spec).block("layer")


def price(
    block: Block,
    on: str,
    number: str,
    *,
    framework: str = "megatron-lm",
    tp: int = 1,
    micro_batch: int = 1,
    recompute: str = "none",
    sequence_parallel: bool = False,
    flash_attention: bool = False,
) -> Atom:
    """One micro-batch through *block* on a rank of the cluster *on*."""
    return layer_price(
        block,
        machine(cluster(on), load_framework(framework)),
        number,
        seq_len=SEQUENCE,
        micro_batch=micro_batch,
        tp=tp,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        flash_attention=flash_attention,
    )


def _korthikanti(folder: Path) -> Iterator[Layer]:
    block = gpt_layer(6144, 64)
    for row in rows(folder, "layer_times.csv"):
        if not row["source"].startswith("Korthikanti"):
            continue
        recompute, split = TECHNIQUES[row["item"]]
        found = price(
            block,
            "dgx-a100-80gb",
            "fp16",
            tp=8,
            micro_batch=4,
            recompute=recompute,
            sequence_parallel=split,
        )
        passes = {
            "fwd_ms": found.forward_s,
            "bwd_ms": found.recompute_s + found.backward_s,
        }
        for column, seconds in passes.items():
            yield Layer(
                source="Korthikanti, A100",
                what=f"{row['item']}, {column[:3]}",
                measured=float(row[column]) * MS,
                priced=float(seconds),
            )


def _aceso(folder: Path) -> Iterator[Layer]:
    timed: dict[tuple[int, int, int, int], float] = defaultdict(float)
    for hidden, heads, tokens, tp, row in profiled(folder):
        if row["item"].startswith("enc-"):
            total = float(row["fwd_ms"]) + float(row["bwd_ms"])
            timed[hidden, heads, tokens // SEQUENCE, tp] += total * MS
    for (hidden, heads, size, tp), measured in timed.items():
        found = price(
            gpt_layer(hidden, heads), "dgx-v100-32gb", "fp16", tp=tp, micro_batch=size
        )
        short = "shorter" if measured < HOST_BOUND_S else "11 ms and more"
        yield Layer(
            source=f"Aceso, V100, {short}",
            what=f"hidden {hidden}, micro-batch {size}, tp {tp}",
            measured=measured,
            priced=float(found.forward_s + found.backward_s),
        )


def _llama() -> Block:
    spec = model("llama2-7b").spec
    assert isinstance(spec, DecoderSpec)
    return decoder_graph(spec).block("layer")


def _galvatron_times(folder: Path) -> Iterator[Layer]:
    """Forward of two layers is what four take longer than two."""
    timed: dict[int, dict[int, float]] = defaultdict(dict)
    for row in rows(folder, "layer_times.csv"):
        name = _TRUNCATED.match(row["model"])
        if name:
            timed[int(name[2])][int(name[1])] = float(row["fwd_ms"]) * MS
    for size, seconds in sorted(timed.items()):
        found = price(
            _llama(),
            "dgx-a100-80gb",
            "bf16",
            framework="megatron-core",
            micro_batch=size,
            flash_attention=True,
        )
        yield Layer(
            source="Galvatron, A100-class, forward",
            what=f"batch {size}",
            measured=(seconds[4] - seconds[2]) / 2,
            priced=float(found.forward_s),
        )


def _galvatron_bytes(folder: Path) -> Iterator[Layer]:
    kept: Mapping[str, Any] = {}
    for row in rows(folder, "mem_facts.csv"):
        if row["model"].endswith(_OF_A_LAYER):
            kept = json.loads(row["value"])["tp_activation_per_bsz_dict"]
    for degree, mebibytes in kept.items():
        whole = degree == "checkpoint"
        tp = 1 if whole else int(degree)
        found = price(
            _llama(),
            "dgx-a100-80gb",
            "fp32",
            tp=tp,
            recompute="full" if whole else "none",
            sequence_parallel=tp > 1,
            flash_attention=True,
        )
        yield Layer(
            source="Galvatron, bytes kept",
            what=f"tp {degree}" if not whole else "its input alone",
            measured=mebibytes * MiB,
            priced=float(found.saved_bytes),
        )
