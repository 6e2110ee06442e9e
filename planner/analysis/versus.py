"""The same job on other clusters: what would they buy?

The break-even price of a GPU-hour is the one at which a token costs as much as on the
first cluster: its price times how much faster a GPU of the other one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.options import RunOptions
from costmodel.simulation import Estimate
from costmodel.sweep import dollars_per_mtoken, kwh_per_mtoken
from costmodel.training_run import whole_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A cluster's best plan beside that of the *first*; without one, why."""

    cluster: str
    found: Estimate | None
    first: Estimate | None
    reason: str | None = None

    @property
    def faster(self) -> float | None:
        """Tokens a second of a GPU, over those of the first cluster's."""
        if self.found is None or self.first is None:
            return None
        return self.found.tokens_per_s_per_gpu / self.first.tokens_per_s_per_gpu

    @property
    def break_even(self) -> float | None:
        """Dollars for a GPU-hour at which a token costs what the first one's does."""
        price = None if self.first is None else self.first.device_cost
        return None if price is None or self.faster is None else price * self.faster

    def days(self, run: RunOptions) -> float | None:
        """To train its tokens; None where failures leave no time to."""
        if run.tokens is None or self.found is None:
            return None
        days: float | None = whole_run(self.found, run)["days"]
        return days

    def document(self, run: RunOptions) -> dict[str, Any]:
        found = self.found
        return {
            "cluster": self.cluster,
            "estimate": found and found.document(),
            "error": self.reason,
            "times_as_fast": self.faster,
            "dollars_per_mtoken": found and dollars_per_mtoken(found),
            "kwh_per_mtoken": found and kwh_per_mtoken(found),
            "device_dollars_per_h": found and found.device_cost,
            "break_even_dollars_per_h": self.break_even,
            "days": self.days(run),
        }


def rivals(rows: Sequence[tuple[str, Estimate | str]]) -> list[Rival]:
    """Each cluster by name beside the first of them."""
    _, base = rows[0]
    first = None if isinstance(base, str) else base
    return [
        Rival(
            cluster=name,
            found=None if isinstance(one, str) else one,
            first=first,
            reason=one if isinstance(one, str) else None,
        )
        for name, one in rows
    ]
