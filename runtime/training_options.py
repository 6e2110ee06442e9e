"""The options of `execute` about what a run does beside its steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from profiles.options import Function, collected, option
from profiles.parameters import one_of, real, text, whole
from runtime.learning_rate import KINDS
from runtime.training import Training

_option = partial(option, "Training")

_OPTIONS: tuple[Callable[[Function], Function], ...] = (
    _option(
        "--lr-schedule",
        type=one_of(*KINDS),
        default="constant",
        metavar="NAME",
        help="The learning rate over the steps: constant, linear, cosine or wsd.  "
        "[default: constant]",
    ),
    _option(
        "--warmup-steps",
        type=whole(0),
        default="0",
        metavar="N",
        help="Steps in which the rate rises to --lr.  [default: 0]",
    ),
    _option(
        "--decay-steps",
        type=whole(1),
        metavar="N",
        help="Steps that the schedule is over, if not --steps.",
    ),
    _option(
        "--min-lr",
        type=real(0, 10),
        default="0",
        metavar="X",
        help="Where a schedule ends.  [default: 0]",
    ),
    _option(
        "--eval-data",
        type=text,
        metavar="FILE|synthetic",
        help="Held-out data to evaluate on.",
    ),
    _option(
        "--eval-every",
        type=whole(1),
        metavar="N",
        help="Steps from one evaluation to the next.  [default: at the end]",
    ),
    _option(
        "--eval-batches",
        type=whole(1, 10**6),
        default="1",
        metavar="N",
        help="Global batches in an evaluation.  [default: 1]",
    ),
    _option("--log", type=text, metavar="FILE", help="One line of JSON a step."),
    _option(
        "--tensorboard",
        type=text,
        metavar="DIR",
        help="The same for TensorBoard (package tensorboard).",
    ),
    _option(
        "--trace",
        type=text,
        metavar="DIR",
        help="Trace one step of each rank with torch.profiler: DIR/rank-0.json …",
    ),
)


def training_options(function: Function) -> Function:
    """Add these options to a command, which takes them as ``training``."""
    return collected(function, into=Training, keyword="training", options=_OPTIONS)
