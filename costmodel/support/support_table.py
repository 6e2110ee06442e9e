"""What the runtime carries out, as data: `costmodel/data/support.json`.

    (mechanism, combination) → yes / no / simulated only, with the reason in words

`no` would be wrong or has no code; `simulated only` has a price and no execution. The
first row of a mechanism whose facts all hold answers for it, and what no row speaks of
is refused. Legality and the planner read this table, tests of the runtime run every
yes and refuse every no.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import msgspec

from costmodel.layout import Layout, Uniform
from costmodel.support.features import Combination, Facts, Values, facts, holds
from profiles.errors import Unsupported
from profiles.hardware import Cluster
from profiles.models import Job

TABLE = Path(__file__).parents[1] / "data" / "support.json"
LOCAL = "local"  # the cluster that a profile was taken on
Asked = Uniform | Layout | Combination


class Answer(StrEnum):
    """Whether the runtime carries a combination out."""

    YES = "yes"
    NO = "no"
    SIMULATED_ONLY = "simulated only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One combination of a mechanism: the facts it is made of, answer and reason."""

    when: Values
    answer: Answer
    reason: str


UNKNOWN = Row(when={}, answer=Answer.NO, reason="the support table does not know it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Rows in the order they are asked. `about` are facts that every message shows;
    where the facts of `unless` hold, the mechanism is not used and has no answer."""

    name: str
    rows: tuple[Row, ...]
    about: tuple[str, ...] = ()
    unless: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The table's answer for one mechanism; `asked` is the combination in words."""

    mechanism: str
    answer: Answer
    reason: str
    asked: str = ""

    def __str__(self) -> str:
        asked = f" ({self.asked})" if self.asked else ""
        return f"{self.mechanism}{asked}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    mechanisms: tuple[Mechanism, ...]


@lru_cache(maxsize=1)
def mechanisms() -> tuple[Mechanism, ...]:
    """The whole table."""
    return msgspec.json.decode(TABLE.read_bytes(), type=_Table).mechanisms


def support(asked: Asked, job: Job) -> list[Verdict]:
    """One verdict for each mechanism that *asked* uses.

    Raises UnknownName or InvalidSpec for names that no catalogue holds.
    """
    found = facts(Combination.of(asked, job), job)
    return [_verdict(one, found) for one in mechanisms() if not _unused(one, found)]


def refusals(asked: Asked, job: Job) -> list[str]:
    """Why `execute` would refuse *asked*, a sentence each; nothing if it would not.

    >>> from profiles.models.catalog import model
    >>> job = Job(model="gpt-tiny", spec=model("gpt-tiny").spec, seq_len=256,
    ...           global_batch=8)
    >>> refusals(Uniform(tp=2, precision="fp32"), job)
    []
    >>> refusals(Uniform(cp=3, precision="fp32"), job)[0].split(":")[0]
    'context parallelism (cp 3, cp kind ring, chunks 256)'
    """
    verdicts = support(asked, job)
    return [str(one) for one in verdicts if one.answer is not Answer.YES]


def require_supported(layout: Layout, job: Job) -> None:
    """Raise Unsupported, with every reason, for what `execute` does not carry out."""
    found = refusals(layout, job)
    if found:
        raise Unsupported(refused(found))


def refused(reasons: list[str]) -> str:
    """All *reasons* in one line, and what works instead."""
    return f"not supported by `execute`: {'; '.join(reasons)}; `simulate` prices it"


def local_warnings(
    asked: Uniform | Layout, job: Job, cluster: Cluster
) -> tuple[str, ...]:
    """What to say beside a price on this machine that `execute` would not train."""
    found = refusals(asked, job) if is_local(cluster) else []
    return tuple(f"`execute` does not carry it out: {one}" for one in found)


def is_local(cluster: Cluster) -> bool:
    """Whether *cluster* is the machine that a profile was taken on."""
    return cluster.name == LOCAL


def default_precisions(cluster: Cluster) -> tuple[str, ...]:
    """What a run is in where nobody says: the first of these that the device has."""
    known = ("bf16", "fp16", "fp32", "tf32")
    return tuple(name for name in known if name != "fp16" or not is_local(cluster))


def _unused(mechanism: Mechanism, found: Facts) -> bool:
    asked_about = {name for row in mechanism.rows for name in row.when}
    foreign = not asked_about <= found.keys()  # only decoders have heads, say
    return foreign or bool(mechanism.unless and holds(mechanism.unless, found))


def _verdict(mechanism: Mechanism, found: Facts) -> Verdict:
    row = next((row for row in mechanism.rows if holds(row.when, found)), UNKNOWN)
    names = dict.fromkeys((*mechanism.about, *row.when))
    shown = [
        found[name].shown if name == mechanism.name else f"{name} {found[name].shown}"
        for name in names
    ]
    return Verdict(
        mechanism=mechanism.name,
        answer=row.answer,
        reason=row.reason,
        asked=", ".join(shown),
    )
