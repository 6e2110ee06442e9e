"""`Columns`: candidate layouts as rows of integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import CP_KINDS
from costmodel.offload import NOTHING, Offload
from costmodel.retention import LATER, PRESETS
from costmodel.schedule import schedule_called
from costmodel.uniform import Uniform
from costmodel.zero_plus import PLAIN, ZeroPlus

Array = NDArray[Any]
SCHEDULES: Final = (
    *("1f1b", "gpipe", "interleaved"),
    *("zb-h1", "zb-interleaved", "zb-v", "dualpipe-v", "chimera"),
)
RECOMPUTES: Final = PRESETS
SQRT: Final = RECOMPUTES.index("sqrt")
_SHARED: Final = (
    "precision",
    "gradient_format",
    "flash_attention",
    "offload",
    "zero_plus",
)
_NAMED: Final = {"schedule": SCHEDULES, "cp_kind": CP_KINDS}
_IN_PAIRS: Final = tuple(
    known.in_v or known.copies > 1 for known in map(schedule_called, SCHEDULES)
)
_ENDS_AT_FIRST: Final = ("1f1b", "gpipe", "interleaved")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Equal-length integer arrays; names are indices into the tuples above, those of
    what is made again into `recomputes`.

    Precision, the attention kernel, what is offloaded and ZeRO++ are one for all rows:
    they are the question's.
    """

    tp: Array
    pp: Array
    dp: Array
    cp: Array
    ep: Array
    etp: Array
    micro_batch: Array
    schedule: Array
    virtual_stages: Array
    zero: Array
    zero_group: Array
    sequence_parallel: Array
    recompute: Array
    cp_kind: Array
    precision: str = "bf16"
    gradient_format: str = "fp32"
    flash_attention: bool = True
    offload: Offload = NOTHING
    zero_plus: ZeroPlus = PLAIN
    recomputes: tuple[str, ...] = RECOMPUTES

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def gpus(self) -> Array:
        """Devices of each row."""
        return np.asarray(self.tp * self.pp * self.dp * self.cp)

    @property
    def in_pairs(self) -> Array:
        """Where the first rank holds the last stage too: in a V, or both ways."""
        return np.array(_IN_PAIRS)[self.schedule]

    @property
    def _names(self) -> dict[str, tuple[str, ...]]:
        return {**_NAMED, "recompute": self.recomputes}

    @property
    def in_v(self) -> Array:
        found = [schedule_called(name).in_v for name in SCHEDULES]
        return np.array(found)[self.schedule]

    @property
    def copies(self) -> Array:
        """Of the model."""
        found = [schedule_called(name).copies for name in SCHEDULES]
        return np.array(found)[self.schedule]

    @property
    def ends_at_first(self) -> Array:
        """Where the first stage's last backward is the pipeline's last pass."""
        return np.array([name in _ENDS_AT_FIRST for name in SCHEDULES])[self.schedule]

    @property
    def puts_off(self) -> Array:
        """Where backwards are split."""
        return np.array([schedule_called(name).splits for name in SCHEDULES])[
            self.schedule
        ]

    def take(self, index: Array) -> Columns:
        """The rows at *index*, or where a mask is true."""
        return replace(self, **{name: getattr(self, name)[index] for name in INTEGERS})

    def choice(self, row: int) -> Uniform:
        """One row as the dozen numbers that people say."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _SHARED}
        for name in INTEGERS:
            value = int(getattr(self, name)[row])
            values[name] = self._names[name][value] if name in self._names else value
        values["sequence_parallel"] = bool(values["sequence_parallel"])
        return Uniform(**values)

    @classmethod
    def of(cls, rows: Sequence[Uniform]) -> Columns:
        """Columns of *rows*, which share precision and attention kernel."""
        shared: dict[str, Any] = {name: getattr(rows[0], name) for name in _SHARED}
        shared["recomputes"] = recomputes_with(*(row.recompute for row in rows))
        names = {**_NAMED, "recompute": shared["recomputes"]}

        def code(name: str, value: Any) -> int:
            return names[name].index(value) if name in names else int(value)

        columns: dict[str, Any] = {
            name: np.array([code(name, getattr(row, name)) for row in rows])
            for name in INTEGERS
        }
        return cls(**columns, **shared)

    @classmethod
    def concatenate(cls, several: Iterable[Columns]) -> Columns:
        """All rows, one after another; they share precision and `recomputes`."""
        parts = list(several)
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in INTEGERS
        }
        return replace(parts[0], **columns)


INTEGERS: Final = tuple(
    item.name for item in fields(Columns) if item.name not in (*_SHARED, "recomputes")
)


def recomputes_with(*names: str) -> tuple[str, ...]:
    """The presets, and behind them those of *names* that list operators.

    >>> recomputes_with("full", "mlp_up,activation")[-2:]
    ('sqrt', 'mlp_up,activation')
    """
    known = (*PRESETS, *LATER)
    return (*RECOMPUTES, *dict.fromkeys(name for name in names if name not in known))
