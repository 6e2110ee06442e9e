"""`Wish`: what a command line asks of a plan; `Around`: the questions around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from costmodel.options import RunOptions, SweepOptions, run_options
from profiles.commandline import (
    Choice,
    Count,
    FilePath,
    FloatRange,
    Function,
    IntRange,
    PagePath,
    collected,
    complete_some,
    option,
    refuse,
    text,
)

QUANTITIES: Final = ("seq-len", "global-batch", "layers")
SCALINGS: Final = ("weak", "strong")
SEARCHES: Final = (  # of `planner.search`, which help does not load
    *("branch-and-bound", "exhaustive", "mcmc", "megatron", "hf-ladder", "fsdp"),
    *("deepspeed", "2bw", "pipedream", "recursive"),
)
OBJECTIVES: Final = ("throughput", "cost", "memory", "time-to-train")
MOST_SIZES: Final = 64
MOST_RUNNERS_UP: Final = 100
MOST_PROBES: Final = 100
_RANGE: Final = re.compile(r"([^.]*)\.\.([^.]*)")
_RULE: Final = (
    "write a number of GPUs, several (8,16,32), or a range that doubles from the first "
    "to the last (8..512)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Each is None or False where the command line does not ask."""

    run: RunOptions = field(default_factory=RunOptions)
    maximize: str | None = option(
        type=Choice(QUANTITIES),
        help="The largest seq-len, global-batch or number of layers that fits, and the "
        "plan at it.",
    )
    diff: tuple[Path, Path] | None = option(
        type=FilePath(),
        nargs=2,
        metavar="A B",
        help="What differs between two layout files, and what each difference costs.",
    )
    source: Path | None = option(
        flag="--from",
        type=FilePath(),
        metavar="FILE",
        help="What a present configuration costs, and what this plan would change: "
        "Megatron's arguments, DeepSpeed's, torchtitan's or Hugging Face's "
        "configuration, NeMo's or Colossal-AI's Python, a Slurm script, a Kubernetes "
        "manifest, or a layout file. Options say what it does not.",
    )
    why_not: tuple[str, ...] = option(
        default=(),
        type=text,
        multiple=True,
        metavar="OPTION=VALUE",
        help="Also: the best plan with this pin, and what it loses: tp=4, or "
        "tp=4,pp=2.",
    )
    explain: bool = option(
        default=False,
        is_flag=True,
        help="Also: what more memory, faster links and devices, and a doubled batch "
        "would buy.",
    )
    days: float | None = option(
        type=FloatRange(0, 1e6, strictly=True),
        metavar="D",
        help="With --tokens, in place of --gpus: the fewest GPUs that train within D "
        "days.",
    )
    budget: float | None = option(
        type=Count(1, 1e15),
        metavar="USD",
        help="With --tokens, in place of --gpus: the most GPUs that train for so many "
        "dollars; with --days, what they may cost.",
    )
    probe: int | None = option(
        type=IntRange(1, MOST_PROBES),
        metavar="K",
        help="Write the K layouts worth measuring first: probe-1.json … beside --out, "
        "or here.",
    )
    shardings: bool = option(
        default=False,
        is_flag=True,
        help="Also: each operator's best sharding on the layout's mesh, by integer "
        "program.",
    )
    jobs: Path | None = option(
        type=FilePath(),
        metavar="FILE",
        help="In place of --model: how several jobs, of a TOML or JSON file, share the "
        "GPUs.",
    )
    versus: str | None = option(
        type=text,
        metavar="CLUSTER,…",
        help="The same job planned on other clusters too: time, cost, energy, and the "
        "price at which each breaks even.",
    )
    scaling: str | None = option(
        type=Choice(SCALINGS),
        help="A scaling curve over several --gpus, by default from a node to 131,072: "
        "strong keeps the global batch, weak that of each GPU.",
    )
    compare_frameworks: bool = option(
        default=False,
        is_flag=True,
        help="Also: the best layout for each main framework, and which is fastest.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line asks for, beside the model and what is fixed of its
    layout."""

    around: Around
    what_if: SweepOptions
    sizes: tuple[int, ...]  # several numbers of GPUs; empty for one
    objective: str = option(default="throughput", type=Choice(OBJECTIVES))
    top: int = option(
        default=5,
        type=IntRange(0, MOST_RUNNERS_UP),
        metavar="K",
        help="Runners-up to name.",
    )
    out: Path | None = option(
        type=FilePath(), metavar="FILE", help="Write the layout file."
    )
    report: Path | None = option(
        type=PagePath(),
        metavar="FILE.html",
        help="Write a page with charts of the plan and its alternatives.",
    )
    serve: bool = option(
        default=False,
        is_flag=True,
        help="Explore in the browser: a page on this machine's loopback whose sliders "
        "are answered at once. Ctrl-C ends it.",
    )
    port: int | None = option(
        type=IntRange(0, 65_535),
        metavar="N",
        help="With --serve: where; 0 takes any that is free.  [default: 8765]",
    )
    details: bool = option(
        default=False,
        is_flag=True,
        help="Show all that is known of the plan, not a screen of it.",
    )
    search: str = option(
        default="branch-and-bound",
        type=text,
        shell_complete=complete_some(*SEARCHES),
        metavar="NAME",
        help=f"{', '.join(SEARCHES)}.",
    )
    compare_searches: bool = option(
        default=False, is_flag=True, help="Run every search and compare them."
    )
    time_limit: float | None = option(
        type=FloatRange(0, 1e9, strictly=True),
        metavar="S",
        help="Stop after S seconds with the best layout so far, and its gap.",
    )
    executable: bool | None = option(
        flag="--executable/--any-mechanism",
        help="Only layouts that `execute` supports, or all layouts that can be priced, "
        "even those --framework cannot run.  [default: executable on the cluster "
        "local]",
    )
    probability: float | None = option(
        type=FloatRange(0.5, 0.9999),
        metavar="P",
        help="Probability with which the layout must fit.  [default: 0.95; 0.5 for "
        "--objective memory]",
    )
    any_stage: bool = option(
        default=False,
        is_flag=True,
        help="Stages may differ in layers and mesh.",
    )
    allow_async: bool = option(
        default=False,
        is_flag=True,
        help="Also schedules that do not flush, whose gradients are stale: async-1f1b, "
        "2bw, pipemare, pb.",
    )
    as_json: bool

    @property
    def of_training(self) -> list[str]:
        """Options that were given and say nothing of inference."""
        kept = ("top", "details", "sizes", "as_json", "around", "what_if", "run")
        around, run = self.around, self.around.run
        both: list[tuple[Any, Any]] = [
            (of, one) for of in (self, around, run, self.what_if) for one in fields(of)
        ]
        return [
            one.metadata.get("flag", f"--{one.name.replace('_', '-')}")
            for of, one in both
            if one.name not in kept and getattr(of, one.name) != one.default
        ]


_questions = collected("Questions around the plan", Around, "around")
search_options = collected("Search", Wish, "wish")


def around_options(function: Function) -> Function:
    """Add the options of `Around`, those of a whole run among them."""
    return run_options(_questions(function))


def several_gpus(function: Function) -> Function:
    """Let `--gpus` of a command with `job_options` name several numbers.

    The command takes all of them as ``sizes`` (empty for one number), and the first as
    its own `--gpus`.
    """

    @wraps(function)
    def call(**values: Any) -> Any:
        asked = values["gpus"]
        sizes = asked if isinstance(asked, tuple) else ()
        values["gpus"] = sizes[0] if sizes else asked
        return function(sizes=sizes, **values)

    for parameter in getattr(call, "__click_params__"):  # noqa: B009
        if parameter.name == "gpus":
            parameter.type = click.types.convert_type(gpu_counts)
            parameter.metavar = "N|A..B|N,N,…"
            parameter.help = "Number of GPUs; with several, one plan each."
    return call


def gpu_counts(given: str) -> int | tuple[int, ...]:
    """One number of GPUs; or several, without repeats, in the order given.

    >>> gpu_counts("64"), gpu_counts("8..100"), gpu_counts("8,24")
    (64, (8, 16, 32, 64), (8, 24))
    """
    count = IntRange()
    span = _RANGE.fullmatch(given.strip())
    if span:
        first, last = (_count(part, given) for part in span.groups())
        if last < first:
            raise refuse(given, f"the range is empty; {_RULE}")
        return tuple(_doubled(first, last))
    if "," not in given:
        return count(given)
    found = tuple(dict.fromkeys(_count(part, given) for part in given.split(",")))
    if len(found) > MOST_SIZES:
        raise refuse(given, f"at most {MOST_SIZES} numbers of GPUs")
    return found


def _count(part: str, given: str) -> int:
    try:
        return IntRange()(part)
    except click.BadParameter:
        raise refuse(given, _RULE) from None


def _doubled(first: int, last: int) -> list[int]:
    found = [first]
    while found[-1] * 2 <= last:
        found.append(found[-1] * 2)
    return found
