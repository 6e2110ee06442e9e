"""The memory of many layouts at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import answers, estimate
from costmodel.simulation.result import Answer
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

GPUS = 8
JOBS = [
    Job(model=name, spec=model(name).spec, seq_len=512, global_batch=16)
    for name in ("gpt-125m", "mixtral-8x7b")
]


def layouts(job: Job) -> Iterator[Layout]:
    for pp, zero, recompute in product((1, 2), (0, 3), ("none", "full")):
        dp = GPUS // pp
        choice = Uniform(
            dp=dp, pp=pp, zero=zero, zero_group=dp if zero else 1, recompute=recompute
        )
        yield spell_out(choice, job.graph, job.global_batch)


def test_many_are_what_each_is_alone() -> None:
    where = cluster("dgx-a100")
    on = machine(where)
    asked = [(job, layout, on) for job in JOBS for layout in layouts(job)]
    for (job, layout, _), found in zip(asked, answers(asked), strict=True):
        alone = estimate(job, where, layout, on=on)
        assert isinstance(found, Answer)
        assert len(found.memory) == layout.pp
        assert found.document() == alone.document()


def test_one_that_cannot_be_priced_stops_no_other() -> None:
    on = machine(cluster("dgx-a100"))
    job, other = JOBS
    good = next(layouts(job))
    found = list(answers([(job, good, on), (other, good, on), (job, good, on)]))
    first, wrong, last = found
    assert isinstance(first, Answer)
    assert isinstance(last, Answer)
    assert "layers" in str(wrong)
    assert first.memory == last.memory
