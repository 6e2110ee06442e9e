"""Tensor parallelism: placeholders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiles.models import Operator
from profiles.trace.steps import Step, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    row: str
    columns: tuple[Columns, ...] = ()
    inside: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    extents: Mapping[str, int] = field(default_factory=dict)

    def applied(self, step: Step, made: Operator) -> Operator:
        return made


def splits_of(trace: Trace) -> tuple[Split, ...]:
    return ()
