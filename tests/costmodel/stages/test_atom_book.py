"""A book gives the atoms that a block has by itself, in whatever order it was asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.layout.offload import Offload, offloaded
from costmodel.layout.retention import preset
from costmodel.layout.strategy import RECOMPUTES
from costmodel.machine.assembly import machine
from costmodel.operators.degrees import Degrees
from costmodel.operators.sharding import entry_bytes
from costmodel.stages.block_batch import SITE, AtomBook
from costmodel.stages.block_cost import ATOM, atom, block_prices
from profiles.hardware.catalog import cluster
from profiles.hardware.precisions import precision
from profiles.models.catalog import model
from profiles.models.job import Job

SITES = np.array(  # tp, cp, micro-batch, ep, etp, kind of cp, sequence parallel
    [
        (1, 1, 1, 1, 1, 0, 0),
        (4, 2, 1, 1, 1, 2, 1),
        (4, 2, 1, 4, 1, 2, 1),
        (2, 1, 3, 8, 2, 0, 1),
        (4, 2, 1, 4, 1, 0, 1),
        (2, 1, 3, 8, 2, 0, 0),
    ]
)


def book(name: str, offload: Offload | None = None) -> AtomBook:
    found = model(name)
    job = Job(model=name, spec=found.spec, seq_len=found.seq_len, global_batch=64)
    where = machine(cluster("dgx-a100-80gb"))
    plain = AtomBook(job=job, on=where, policy=precision("bf16"))
    return plain if offload is None else replace(plain, offload=offload)


def columns(rows: list[int]) -> dict[str, np.ndarray]:
    return dict(zip(SITE, SITES[rows].T, strict=True))


@pytest.mark.parametrize("name", ["gpt-13b", "mixtral-8x7b"])
@pytest.mark.parametrize("away", [None, Offload(activations=0.5)])
def test_atoms_are_those_of_the_block_alone(name: str, away: Offload | None) -> None:
    asked = book(name, away)
    kept = ("none", "full", "selective")
    for rows in ([0, 1, 1], [3, 2, 0, 5, 4], [5, 5, 1]):  # known ones and new ones
        sites = asked.sites(columns(rows))
        chosen = np.arange(len(rows)) % len(kept)
        layer = asked.job.graph.runs[0][0].name
        for block in (layer, "head"):
            code = chosen if block == layer else np.zeros_like(chosen)
            found = asked.atoms(block, sites, kept, code)
            for column, (row, one) in enumerate(zip(rows, code, strict=True)):
                alone = by_itself(asked, block, SITES[row], kept[one])
                assert found[:, column] == pytest.approx(alone, rel=1e-13)


def by_itself(asked: AtomBook, name: str, site: np.ndarray, kept: str) -> list[float]:
    tp, cp, micro_batch, ep, etp, kind, split = site
    block = asked.job.graph.block(name)
    degrees = Degrees(
        tp=tp,
        cp=cp,
        micro_batch=micro_batch,
        ep=ep,
        etp=etp,
        seq_len=asked.job.seq_len,
        sequence_parallel=bool(split),
        cp_kind=("ring", "all-gather", "ulysses")[kind],
        imbalance=asked.on.imbalance,
    )
    retention = preset(kept, block)
    if name in asked.body:
        retention = offloaded(retention, block, asked.offload)
    found = atom(
        block,
        block_prices(block, degrees, asked.policy, asked.on),
        retention,
        entry_bytes(block, degrees, asked.policy),
        stops_early=asked.on.framework.stops_early,
        floor=asked.on.framework.host.floor,
    )
    return [float(getattr(found, field)) for field in ATOM]


def test_fields_are_those_that_are_wanted() -> None:
    asked = book("gpt-13b")
    sites = asked.sites(columns([0, 1]))
    code = np.array([0, RECOMPUTES.index("full")])
    every = asked.atoms("layer", sites, RECOMPUTES, code)
    wanted = ("saved_bytes", "forward_s")
    some = asked.atoms("layer", sites, RECOMPUTES, code, wanted)
    assert np.array_equal(some, every[[ATOM.index(one) for one in wanted]])


def test_a_shared_parameter_is_nothing_but_parameters() -> None:
    asked = book("gpt-13b")
    ((*_, holder),) = asked.job.graph.tied
    shared = asked.tied(holder, asked.sites(columns([0])), twice=True).table[:, 0]
    assert set(np.flatnonzero(shared)) == {ATOM.index("parameters")}
