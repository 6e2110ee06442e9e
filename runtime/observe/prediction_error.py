"""Where a prediction missed: each part of the step, predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from profiles.units import MB

if TYPE_CHECKING:
    from costmodel.machine import Machine
    from costmodel.simulation import Estimate

NAMES: Final = {
    "compute": "compute",
    "tensor_comm": "tensor parallel",
    "context_comm": "context parallel",
    "expert_comm": "expert parallel",
    "pipeline_comm": "pipeline transfers",
    "data_comm": "data parallel",
    "bubble": "bubble and waiting",
    "optimizer": "optimizer",
    "offload": "offload",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Seconds of a step's part; the collectives are in the parts that they serve."""

    part: str
    measured_s: float
    predicted_s: float
    collective: bool = False


def missed(found: Estimate, on: Machine, seen: Mapping[str, Any]) -> list[Missed]:
    """The parts of the step, then each collective; nothing where none was seen."""
    if "parts_s" not in seen:
        return []
    return [*_parts(found, seen["parts_s"]), *_collectives(on, seen["exchanges"])]


def largest(rows: Sequence[Mapping[str, Any]], step_s: float) -> str:
    """The part that the step was missed by most, of a document's `missed`."""
    errors = {
        row["part"]: row["predicted_s"] - row["measured_s"]
        for row in rows
        if not row["collective"]
    }
    part = max(errors, key=lambda name: abs(errors[name]))
    sign = "too long" if errors[part] > 0 else "too short"
    share = abs(errors[part]) / step_s
    return f"the largest miss: {part}, predicted {share:.0%} of the step {sign}"


def _parts(found: Estimate, measured: Mapping[str, float]) -> Iterator[Missed]:
    predicted = dict(found.breakdown_s)
    predicted["compute"] += predicted.pop("recompute", 0.0)
    for name, words in NAMES.items():
        seconds = measured.get(name, 0.0)
        if seconds > 0 or predicted.get(name, 0.0) > 0:
            yield Missed(
                part=words,
                measured_s=seconds,
                predicted_s=float(predicted.get(name, 0.0)),
            )


def _collectives(on: Machine, rows: list[Mapping[str, Any]]) -> Iterator[Missed]:
    """Each collective of each size: its seconds by itself, times its calls a step."""
    import numpy as np

    for row in rows:
        size, count = np.asarray(float(row["size_bytes"])), row["count"]
        ranks = np.asarray(prod(row["ranks"]))
        if row["collective"] == "send":
            each = on.send_s(size, far=np.asarray(len(row["ranks"]) > 1))
        else:
            near = np.asarray(row["ranks"][0])
            each = on.collective_s(row["collective"], size, ranks=ranks, near=near)
        kind = row["collective"].replace("_", "-")
        yield Missed(
            part=f"{row['axis']} {kind} of {row['size_bytes'] / MB:.3g} MB × {count}",
            measured_s=row["median_s"] * count,
            predicted_s=float(each) * count,
            collective=True,
        )
