"""What the matrix of numerics showed, as tables: a row a kind, and a row a layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from costmodel.layout.strategy import Uniform
from costmodel.schedule import SCHEDULES, flushes, schedule_called
from tests.support.matrix import Seen
from tests.support.priced import unlike_priced
from tests.support.training_cases import EXPERTS, choice_of

LEVELS = (0, 1, 2, 3)
AXES = ("tp", "pp", "dp", "cp", "ep")
_TOGETHER = "losses | first gradients | last parameters"
_SUMMARY = (
    f"| layouts | cases | on ranks | {_TOGETHER} | SGD: a tensor's gradient "
    "| its last value | its update |"
)
_WHOLE = (
    f"| model | layout | ranks | optimizer | {_TOGETHER} | a tensor's gradient "
    "| its last value | its update |"
)


class Row(NamedTuple):
    """A case by one optimizer: how far from one process."""

    family: str
    name: str
    ranks: int
    optimizer: str
    losses: float  # the largest of all steps, nats
    gradients: float  # of the first step, relative L2 over all parameters together
    parameters: float  # after the last step
    worst_gradient: float  # of a tensor by itself
    worst_parameter: float
    worst_update: float  # of what the steps changed
    as_priced: bool  # the first step's actions, their collectives and bytes

    @property
    def choice(self) -> Uniform:
        return choice_of(self.family, self.name)


def rows_of(optimizer: str, seen: Mapping[tuple[str, str], Seen]) -> list[Row]:
    return [
        Row(
            family=family,
            name=name,
            ranks=choice_of(family, name).gpus,
            optimizer=optimizer,
            losses=one.losses,
            gradients=one.apart("gradients"),
            parameters=one.apart("parameters"),
            worst_gradient=one.worst("gradients")[0],
            worst_parameter=one.worst("parameters")[0],
            worst_update=one.worst("updates")[0],
            as_priced=not unlike_priced(family, name, one.recorded),
        )
        for (family, name), one in seen.items()
    ]


Is = Callable[[Row], bool]


def kinds() -> dict[str, Is]:
    """What a case may be an example of; it is one of several."""
    return {
        "one rank": lambda row: row.ranks == 1,
        "tensor parallel": lambda row: row.choice.tp > 1,
        "with sequence parallelism": lambda row: row.choice.sequence_parallel,
        **{
            f"context parallel, {kind}": _exchanges(kind)
            for kind in ("ring", "all-gather", "ulysses")
        },
        "experts": lambda row: row.family in EXPERTS,
        "over ep ranks": lambda row: row.choice.ep > 1,
        **{f"ZeRO-{level}": _sharded(level) for level in LEVELS},
        **{name: _scheduled(name) for name in SCHEDULES if flushes(name)},
        "split backwards": lambda row: (
            row.choice.pp > 1 and schedule_called(row.choice.schedule).splits
        ),
        "tied embeddings over stages": lambda row: (
            row.family == "gpt" and row.choice.pp > 1
        ),
        "recompute": lambda row: row.choice.recompute != "none",
        "activations offloaded": lambda row: row.choice.offload.activations > 0,
        "optimizer on the host": lambda row: row.choice.offload.optimizer,
        "parameters on the host": lambda row: row.choice.offload.parameters,
        **{f"{count} dimensions at once": _composed(count) for count in (2, 3, 4, 5)},
    }


def _exchanges(kind: str) -> Is:
    return lambda row: row.choice.cp > 1 and row.choice.cp_kind == kind


def _sharded(level: int) -> Is:
    return lambda row: row.choice.dp * row.choice.cp > 1 and row.choice.zero == level


def _scheduled(schedule: str) -> Is:
    return lambda row: row.choice.pp > 1 and row.choice.schedule == schedule


def _composed(count: int) -> Is:
    return lambda row: sum(getattr(row.choice, axis) > 1 for axis in AXES) == count


def summary(rows: Sequence[Row]) -> str:
    """The largest distances of each kind, as Markdown."""
    lines = [_SUMMARY, "|---|---:|---|---:|---:|---:|---:|---:|---:|"]
    every: dict[str, Is] = {**kinds(), "**all**": lambda _: True}
    for kind, holds in every.items():
        of_kind = [row for row in rows if holds(row)]
        if of_kind:
            lines.append(f"| {kind} | {_summed(of_kind)} |")
    alike = sum(row.as_priced for row in rows)
    return "\n".join(lines) + (
        f"\n\nIn {alike} of {len(rows)} runs every rank carried out the stream that is "
        "priced, each action with as many collectives and bytes."
    )


def _summed(rows: Sequence[Row]) -> str:
    sgd = [row for row in rows if row.optimizer == "sgd"]
    worlds = sorted({row.ranks for row in rows})
    return " | ".join(
        [
            str(len({row[:2] for row in rows})),
            ", ".join(map(str, worlds)),
            *(
                _most(getattr(row, part) for row in rows)
                for part in ("losses", "gradients", "parameters")
            ),
            *(
                _most(getattr(row, part) for row in sgd)
                for part in ("worst_gradient", "worst_parameter", "worst_update")
            ),
        ]
    )


def _most(values: Iterable[float]) -> str:
    return f"{max(values, default=float('nan')):.1e}"


def whole_table(rows: Sequence[Row]) -> str:
    """One row a layout and optimizer, as Markdown."""
    return "\n".join(
        [
            _WHOLE,
            "|---|---|---:|---|---:|---:|---:|---:|---:|---:|",
            *(
                f"| {row.family} | {row.name} | {row.ranks} | {row.optimizer} | "
                + " | ".join(f"{value:.1e}" for value in row[4:10])
                + " |"
                for row in rows
            ),
        ]
    )
