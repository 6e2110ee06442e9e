"""The support table and the runtime agree: each yes trains, each no starts nothing."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.schedule.schedules import flushes
from costmodel.simulation.layout_files import write_layout
from costmodel.support.support_table import Answer, Row
from profiles.errors import Unsupported
from profiles.models.job import Job
from runtime.launch import run
from runtime.optim.optimizer import Settings
from tests.runtime.ranks import on_ranks
from tests.runtime.run_options import run_options
from tests.support.fact_settings import GLOBAL_BATCH
from tests.support.supported import ROWS, Example, examples

STEPS = 2
NARROW = {
    "bf16": 3e-2,
    "amp-bf16": 3e-2,
    "fp16": 4e-3,
    "amp-fp16": 4e-3,
    "fp8": 3e-2,
    "fp8-s2": 1e-2,
    "fp8-wang": 1e-2,
}
ROUNDING = 1e-5
# Eight bits of what layers save, or of weights that are gathered; the loss of the
# second step is that of other weights.
OF_EIGHT_BITS = 1e-2
REMEDY = re.compile(
    r"\b(choose|leave|give|set|add|pad|keep|say|number|recompute|treat) "
)


def elsewhere(row: Row) -> bool:
    """Modules of one's own: tests/runtime/modules; steps that are not flushed, which
    train like no such process: tests/runtime/train/test_stale.py."""
    late = "async-1f1b" in row.when.get("schedule", ())
    own = row.when.get("family") == ("module",)
    return own or late or row.when.get("flush") == ("no",)


YES = {
    (mechanism.name, row.reason): row
    for mechanism, row in ROWS
    if row.answer is Answer.YES and not elsewhere(row)
}
OTHERS = [*examples(Answer.NO), *examples(Answer.SIMULATED_ONLY)]


@cache
def cheapest() -> dict[str, Example]:
    """Of every yes of the table the example on the fewest ranks, by name."""
    found: dict[tuple[str, str], Example] = {}
    for one in examples(Answer.YES):
        if one.values.get("family") == "module" or not flushes(one.layout.schedule):
            continue
        key = (one.mechanism, one.row.reason)
        known = found.get(key)
        if known is None or one.layout.gpus < known.layout.gpus:
            found[key] = one
    assert found.keys() == YES.keys()
    return {one.name: one for one in found.values()}


@pytest.mark.matrix
@pytest.mark.parametrize(
    "world", sorted({one.layout.gpus for one in cheapest().values()})
)
def test_every_yes_trains_like_one_process(world: int) -> None:
    """Two steps: both losses and the norm of the first gradient."""
    names = [name for name, one in cheapest().items() if one.layout.gpus == world]
    assert names
    alone = on_ranks(1, references, names)[0]
    for ranks in on_ranks(world, trained_all, names):
        for name, seen in ranks.items():
            values = cheapest()[name].values
            if ">0" in (values.get("dropout"), values.get("attention dropout")):
                assert all(0 < value < 10 for value in seen), name
            else:
                near = tolerance(name)
                assert seen == pytest.approx(alone[name], rel=near), name


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_every_no_is_refused_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Example
) -> None:
    """By what `execute` does with a layout file, with the nearest that is done."""
    monkeypatch.setattr(run, "launch", _never)
    monkeypatch.setattr(run, "require_startable", _never)
    file = tmp_path / "layout.json"
    write_layout(file, case.job, "local", case.layout)
    with pytest.raises(Unsupported) as raised:
        run.prepare(run_options(file))
    assert raised.value.exit_code == 2
    assert case.row.reason in str(raised.value)
    assert REMEDY.search(case.row.reason)


def test_rows_are_told_apart_by_their_reasons() -> None:
    yes = [row for _, row in ROWS if row.answer is Answer.YES]
    assert len(YES) == sum(not elsewhere(row) for row in yes)


def tolerance(name: str) -> float:
    one = cheapest()[name]
    compressed = str(one.values.get("saved tensors")).startswith("compressed")
    if compressed or one.values.get("ZeRO++") == "some":
        return OF_EIGHT_BITS
    return NARROW.get(one.layout.precision_name, ROUNDING)


def references(rank: int, names: list[str]) -> dict[str, list[float]]:
    """The jobs of *names* in 32 bits on one rank, nothing made again or moved."""
    plain = Uniform(precision="fp32", zero=0, micro_batch=GLOBAL_BATCH)
    found: dict[str, list[float]] = {}
    known: dict[str, list[float]] = {}
    for name in names:
        job = cheapest()[name].job
        if repr(job) not in known:
            layout = spell_out(plain, job.graph, job.global_batch)
            known[repr(job)] = trained(job, layout)
        found[name] = known[repr(job)]
    return found


def trained_all(rank: int, names: list[str]) -> dict[str, list[float]]:
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    chosen = {name: cheapest()[name] for name in names}
    return {name: trained(one.job, one.layout) for name, one in chosen.items()}


def trained(job: Job, layout: Layout) -> list[float]:
    """The losses of the first steps, and the norm of the first gradient."""
    import torch

    from runtime.data.sources import source
    from runtime.models.decoder import decoder_of
    from runtime.train.build import Setup
    from runtime.train.trainer import Trainer

    trainer = Trainer(
        job,
        layout,
        source("synthetic", vocab=decoder_of(job).vocab, seq_len=job.seq_len, seed=2),
        settings=Settings(name=job.optimizer, lr=1e-3),
        setup=Setup(seed=3, device=torch.device("cpu")),
    )
    seen = [trainer.step(number) for number in range(STEPS)]
    return [*(one.loss for one in seen), seen[0].gradient_norm]


def _never(*_: Any, **__: Any) -> Iterator[Any]:
    raise AssertionError("a process was about to start")
