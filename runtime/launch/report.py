"""A run on the terminal: what is about to train, and how it went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from profiles.commandline import hint
from profiles.units import GB
from runtime.launch.history import words as goodput_words
from runtime.observe import largest

if TYPE_CHECKING:
    from runtime.launch.run import Run


def opening(run: Run) -> RenderableType:
    """One line a fact, before the first step."""
    summary = run.layout.summary
    degrees = " · ".join(
        f"{name.replace('_', '-')} {summary[name]}"
        for name in ("tp", "pp", "dp", "zero", "micro_batch")
    )
    what = (
        f"{run.job.model} · {run.layout.gpus} ranks on {run.device} · {degrees} · "
        f"{run.layout.schedule} · {run.layout.precision_name}"
    )
    lines = [what, run.data.about]
    least, most = run.options.machines
    if most > 1:
        which = f"all of {most}" if least == most else f"{least} to {most}"
        lines.append(
            f"waits for {which} machines at {run.options.rdzv_endpoint}; the same "
            "command runs on each"
        )
    found = run.prediction.held_against
    if found is not None:
        lines.append(
            f"predicted: {found.step_time_s:.3f} s a step, "
            f"{found.peak_allocated_bytes / GB:.3f} GB allocated"
        )
    return Text("\n".join(lines))


def run_view(document: Mapping[str, Any], *, details: bool = False) -> RenderableType:
    """A sentence, predicted beside measured and, with *details*, where it was
    missed."""
    if "steps" not in document:
        return Text("done; the machine of rank 0 shows what was measured")
    if not document["step_time_s"]:
        return Text("every step was done before; nothing was trained")
    table = Table(box=None, pad_edge=False)
    for name in ("", "measured", "predicted", "error"):
        table.add_column(name, justify="left" if not name else "right")
    predicted, error = document["predicted"], document["error"]
    seconds = document["step_time_s"]
    peaks = [peak for peak in document["peak_allocated_bytes"] if peak]
    table.add_row(
        "step time",
        f"{seconds['median']:.3f} s",
        f"{predicted['step_time_s']:.3f} s" if predicted else "–",
        _signed(error and error["step_time"]),
    )
    table.add_row(
        "peak allocated",
        f"{max(peaks) / GB:.3f} GB" if peaks else "–",
        f"{predicted['peak_allocated_bytes'] / GB:.3f} GB" if predicted else "–",
        _signed(error and error["peak_memory"]),
    )
    losses, steps = document["losses"], document["steps"]
    done = "1 step" if steps == 1 else f"{steps} steps"
    sentence = Text(
        f"Trained {done} in {document['wall_s']:.1f} s: loss {_loss(losses[0])} → "
        f"{_loss(losses[-1])}, {document['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU"
        f"{_off(error)}.",
        style="bold",
    )
    spent = goodput_words(document["goodput"]) if "goodput" in document else ""
    return Group(
        sentence,
        table,
        *_missed(document, details=details),
        *([Text(spent)] if spent else []),
    )


def _off(error: Mapping[str, float] | None) -> str:
    """How far off the prediction was, in words."""
    if not error or error["step_time"] is None:
        return ""
    off = error["step_time"]
    which = "long" if off > 0 else "short"
    return f"; the step was predicted {abs(off):.1%} too {which}"


def diverged(document: Mapping[str, Any]) -> str | None:
    """What to say of a run that stopped at numbers that are not finite; None of one
    that trained."""
    stopped = document.get("stopped")
    if stopped is None:
        return None
    return (
        f"the {stopped['not_finite']} of step {stopped['step']} is not finite, and the "
        "run was stopped: choose a smaller --lr, a --clip, or a precision of a wider "
        "range, and begin again or --resume from before it"
    )


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _missed(document: Mapping[str, Any], *, details: bool) -> list[RenderableType]:
    """Which part was missed by most; with *details* where the step went, predicted
    beside measured, then each collective."""
    rows = document["missed"]
    if not rows:
        return []
    said = Text(largest(rows, document["step_time_s"]["median"]))
    if not details:
        return [said, hint("the step's parts and every collective")]
    table = Table(box=None, pad_edge=False)
    for name in ("\na step's", "measured", "predicted", "off by"):
        table.add_column(name, justify="left" if "step" in name else "right")
    for row in rows:
        off = row["predicted_s"] - row["measured_s"]
        table.add_row(
            f"  {row['part']}" if row["collective"] else row["part"],
            f"{row['measured_s']:.4f} s",
            f"{row['predicted_s']:.4f} s",
            f"{off:+.4f} s",
        )
    return [table, said]


def _signed(error: float | None) -> str:
    return "–" if error is None else f"{100 * error:+.1f} %"
