"""`RunOptions`: what a command line says of a whole training run."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.commandline import (
    LARGEST_SAMPLES,
    Choice,
    Count,
    FloatRange,
    IntRange,
    collected,
    flags,
    option,
)
from profiles.errors import Contradiction

RECOVERIES = ("checkpoint", "replica", "log")
MOST_RUNS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Each is None where the command line does not say."""

    tokens: float | None = option(
        type=Count(1, 1e18),
        metavar="N",
        help="Also: days, dollars, energy, CO2, failures and total FLOPs to train N "
        "tokens.",
    )
    rampup: tuple[int, int, int] | None = option(
        flag="--rampup-batch-size",
        type=(IntRange(), IntRange(), IntRange(1, LARGEST_SAMPLES)),
        metavar="START INCREMENT SAMPLES",
        help="The batch grows from START sequences to the global batch by INCREMENT, "
        "over the first SAMPLES sequences.",
    )
    eval_interval: int | None = option(
        type=IntRange(),
        metavar="STEPS",
        help="Evaluate every so many steps.  [default: never]",
    )
    eval_iters: int | None = option(
        type=IntRange(),
        metavar="N",
        help="Batches of one evaluation.  [default: 100]",
    )
    save_interval: int | None = option(
        type=IntRange(),
        metavar="STEPS",
        help="Save every so many steps.  [default: as often as is best]",
    )
    storage_bandwidth: float | None = option(
        type=FloatRange(0, 1e9, strictly=True),
        metavar="GB/S",
        help="What the storage of checkpoints takes from the whole job.  [default: "
        "the nodes' drives, or 0.25 GB/s a device]",
    )
    mtbf: float | None = option(
        type=FloatRange(0, 1e9, strictly=True),
        metavar="HOURS",
        help="Mean time between failures of a node.  [default: the cluster file's]",
    )
    restart_time: float | None = option(
        type=FloatRange(0, 1e9),
        metavar="S",
        help="From a failure to training again, reading the checkpoint left out.  "
        "[default: 600]",
    )
    recovery: str | None = option(
        type=Choice(RECOVERIES),
        help="What is lost at a failure: all since the last checkpoint, a step (live "
        "replicas), or one group's part of it (logged messages).  [default: the best "
        "that the layout has]",
    )
    spare_nodes: int | None = option(
        type=IntRange(0),
        metavar="N",
        help="Idle nodes that take a failed one's place.  [default: always one there]",
    )
    repair_time: float | None = option(
        type=FloatRange(0, 1e6, strictly=True),
        metavar="HOURS",
        help="With --spare-nodes: until a failed node is back.  [default: 24]",
    )
    step_jitter: float | None = option(
        type=FloatRange(0, 1),
        metavar="SIGMA",
        help="Standard deviation of a rank's own work in a step, as a share of it: "
        "each step waits for the slowest rank.  [default: 0]",
    )
    monte_carlo: int | None = option(
        type=IntRange(2, MOST_RUNS),
        metavar="N",
        help="Also draw N runs with their failures (always the same ones).",
    )
    pue: float | None = option(
        type=FloatRange(1, 10),
        help="Energy of the data centre over that of its computers.  [default: 1.1]",
    )
    carbon_intensity: float | None = option(
        type=FloatRange(0, 1e5),
        metavar="G/KWH",
        help="Grams of CO2 for a kWh.  [default: 429, of the United States]",
    )

    def __post_init__(self) -> None:
        others = [flag for flag in flags(self) if flag != "--tokens"]
        if self.tokens is None and others:
            first = others[0].replace("--rampup", "--rampup-batch-size")
            raise Contradiction(f"{first} is about a whole run; give its --tokens too")
        if self.eval_iters is not None and self.eval_interval is None:
            raise Contradiction("--eval-iters is of evaluations; give --eval-interval")
        if self.repair_time is not None and self.spare_nodes is None:
            raise Contradiction(
                "--repair-time says when spare nodes are back; give --spare-nodes too"
            )


run_options = collected("Whole run", RunOptions, "run")
