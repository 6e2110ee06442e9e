"""A small layout for every row of the support table, for tests of table and runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.support.support_table import Answer, Mechanism, Row, mechanisms
from profiles.models.catalog import model
from profiles.models.families import remember
from profiles.models.job import Job
from profiles.models.spec import ModuleSpec
from tests.support.edits import Edit, after, unchanged
from tests.support.fact_settings import GLOBAL_BATCH, SEQ_LEN, SETTINGS, SPEC, UNTRAINED

ROWS = [(one, row) for one in mechanisms() for row in one.rows]


MODULES = "your own module"


def _of_module(plain: Job, *, own_code: bool, splits: bool) -> Job:
    """The same layers as those of a module that somebody traced."""
    name = f"somebody:module_{own_code}_{splits}"
    found = ModuleSpec(
        module=name,
        seq_len=plain.seq_len,
        digest=name,
        own_code=own_code,
    )
    graph = replace(plain.graph, splits=(2,) if splits else ())
    return replace(plain, model=found.module, spec=remember(found, graph))


@dataclass(frozen=True, kw_only=True)
class Example:
    """One combination that a row speaks of, as a job and a finished layout."""

    mechanism: str
    row: Row
    values: Mapping[str, str]
    job: Job
    layout: Layout

    @property
    def name(self) -> str:
        values = ",".join(f"{name}={value}" for name, value in self.values.items())
        return f"{self.mechanism}[{values}]".replace(" ", "-")


def examples(answer: Answer | None = None) -> Iterator[Example]:
    """An example of every combination of every row, or of those with *answer*."""
    for mechanism, row in ROWS:
        if answer in (None, row.answer):
            for chosen in product(*row.when.values()):
                yield example(mechanism, row, dict(zip(row.when, chosen, strict=True)))


def example(mechanism: Mechanism, row: Row, values: Mapping[str, str]) -> Example:
    """The plainest layout of a four-layer model for which *values* hold."""
    spec: dict[str, Any] = {}
    choice: dict[str, Any] = {"precision": "fp32", "zero": 0}
    job: dict[str, Any] = {"seq_len": SEQ_LEN, "optimizer": "adamw"}
    edit: Edit = unchanged
    for fact, value in values.items():
        setting = SETTINGS[fact](value)
        edit = after(edit, setting.pop("edit", unchanged))
        for name, given in setting.items():
            where = spec if name in SPEC.__dataclass_fields__ else choice
            (job if name in job else where)[name] = given
    if choice["zero"] or mechanism.name == "data parallelism":
        choice.setdefault("dp", 2)
    if choice["zero"]:
        choice.setdefault("zero_group", choice["dp"])
    family = values.get("family", "decoder")
    trained = Job(
        model="small",
        spec=replace(SPEC, **spec),
        global_batch=GLOBAL_BATCH,
        **job,
    )
    plain = Job(model="small", spec=SPEC, seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH)
    layout = edit(spell_out(Uniform(**choice), plain.graph, GLOBAL_BATCH))
    if family == "module" or mechanism.name == MODULES:
        own, splits = values.get("own code") == "yes", values.get("splits")
        trained = _of_module(plain, own_code=own, splits=splits != "uneven")
    elif family != "decoder":
        other = model(UNTRAINED[family])
        trained = replace(plain, spec=other.spec, seq_len=other.seq_len)
    return Example(
        mechanism=mechanism.name, row=row, values=values, job=trained, layout=layout
    )
