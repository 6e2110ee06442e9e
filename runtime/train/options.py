"""The options of `execute`: `RunOptions`, and in them `Training`, beside the steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from profiles.commandline import (
    Choice,
    FilePath,
    FloatRange,
    IntRange,
    collected,
    option,
    refuse,
    text,
)
from profiles.errors import Contradiction
from profiles.files import require_package
from runtime.data import absolute
from runtime.optim import KINDS, REMEDIES, LearningRate, require_remedy

if TYPE_CHECKING:
    from costmodel.layout import Layout
    from runtime.optim import Settings

RECOVERIES: Final = ("checkpoint", "replica")
DEVICES: Final = ("cpu", "cuda")
ON_NAN: Final = ("stop", "rollback")
ELASTIC_RESTARTS: Final = 100
MOST_STEPS: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Learning rate over the steps, evaluation, logs and a trace; files by path."""

    lr_schedule: str = option(
        default="constant", type=Choice(KINDS), help="The learning rate over the steps."
    )
    warmup_steps: int = option(
        default=0, type=IntRange(0), help="Steps of linear warm-up to --lr."
    )
    decay_steps: int | None = option(
        type=IntRange(1), help="Steps of the schedule.  [default: --steps]"
    )
    min_lr: float = option(
        default=0.0,
        type=FloatRange(0, 10),
        help="Learning rate at the end of the schedule.",
    )
    stale_gradients: str = option(
        default="none",
        type=Choice(REMEDIES),
        help="What is done about gradients that are late, where steps are not flushed.",
    )
    anneal_steps: int | None = option(
        type=IntRange(1),
        help="Steps of t1.  [default: a quarter of --steps]",
    )
    eval_data: str | None = option(
        type=text, metavar="FILE|synthetic", help="Held-out data to evaluate on."
    )
    eval_every: int | None = option(
        type=IntRange(1),
        help="Steps between evaluations.  [default: at the end]",
    )
    eval_batches: int = option(
        default=1, type=IntRange(1, 10**6), help="Global batches per evaluation."
    )
    log: str | None = option(
        type=text, metavar="FILE", help="Write one line of JSON per step."
    )
    tensorboard: str | None = option(
        type=text, metavar="DIR", help="The same for TensorBoard (package tensorboard)."
    )
    trace: str | None = option(
        type=text,
        metavar="DIR",
        help="Trace one step of each rank with torch.profiler: DIR/rank-0.json …; and "
        "the actions of the last ones, for simulate --compare: DIR/actions.json.",
    )

    def resolved(self) -> Training:
        """The same with absolute paths, for workers in another folder."""
        return replace(
            self,
            eval_data=self.eval_data and absolute(self.eval_data),
            log=_absolute(self.log),
            tensorboard=_absolute(self.tensorboard),
            trace=_absolute(self.trace),
        )

    def require(self) -> None:
        """Raise what is wrong with it: Contradiction, or Unsupported for a package."""
        if self.eval_every and self.eval_data is None:
            raise Contradiction("--eval-every needs --eval-data FILE|synthetic")
        for flag, given, folder in (
            ("--log", self.log, False),
            ("--tensorboard", self.tensorboard, True),
            ("--trace", self.trace, True),
        ):
            if given and Path(given).exists() and Path(given).is_dir() != folder:
                raise Contradiction(
                    f"{flag} {given} is {'no' if folder else 'a'} folder; name "
                    f"{'one' if folder else 'a file'}"
                )
        if self.tensorboard:
            require_package("tensorboard", "--tensorboard", extra="tensorboard")


def _absolute(given: str | None) -> str | None:
    return given and str(Path(given).absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for and the worker processes are told."""

    steps: int = option(default=20, type=IntRange(1, MOST_STEPS))
    data: str = option(
        default="synthetic",
        type=text,
        metavar="FILE|synthetic",
        help="A text file (bytes are tokens), tokens in .npy or .bin, or a learnable "
        "synthetic stream.",
    )
    model: str | None = option(
        type=text,
        metavar="MODULE:FACTORY",
        help="Import the module that the layout is of: package.module:factory.",
    )
    seed: int = option(default=0, type=IntRange(0), metavar="S")
    lr: float = option(default=3e-4, type=FloatRange(0, 10, strictly=True), metavar="X")
    weight_decay: float = option(default=0.1, type=FloatRange(0, 1), metavar="X")
    clip: float = option(
        default=1.0,
        type=FloatRange(0, 1e9),
        help="Largest norm of the gradient; 0: do not clip.",
    )
    checkpoint_every: int | None = option(
        type=IntRange(1), help="Steps between checkpoints.  [default: at the end]"
    )
    async_save: bool = option(
        default=False,
        is_flag=True,
        help="Write checkpoints while training goes on, from copies on the host.",
    )
    keep: int = option(
        default=2, type=IntRange(1, 10**6), help="Newest checkpoints that stay."
    )
    keep_every: int | None = option(
        type=IntRange(1),
        metavar="STEPS",
        help="Keep for good the checkpoint of each so manieth step.",
    )
    recovery: str = option(
        default="checkpoint",
        type=Choice(RECOVERIES),
        help="When a worker dies go on from the newest checkpoint, or from what the "
        "others hold, where that is all.",
    )
    resume: bool = option(
        default=False, is_flag=True, help="Resume from the newest checkpoint."
    )
    weights: str | None = option(
        type=text,
        metavar="DIR",
        help="Start from a Hugging Face folder: config.json and safetensors.",
    )
    save_weights: str | None = option(
        type=text, metavar="DIR", help="Write such a folder at the end."
    )
    record: bool = option(
        default=False, is_flag=True, help="Report the first step's actions."
    )
    compiled: bool = option(
        default=False,
        flag="--compile",
        is_flag=True,
        help="torch.compile of each layer; takes minutes before the first step.",
    )
    timeout_s: float = option(
        default=600.0,
        flag="--timeout",
        type=FloatRange(1, 1e6),
        metavar="SECONDS",
        help="End the run when a rank waits longer than this for another.",
    )
    on_nan: str = option(
        default="stop",
        type=Choice(ON_NAN),
        help="Where the loss is not finite: stop, or go back to the newest checkpoint "
        "and leave out the batches that did it.",
    )
    compress_activations: str | None = option(
        type=Choice(("auto",)),
        metavar="auto",
        help="Share the bits of compressed activations out by what they do to the "
        "gradients, every 1000 steps.  [default: as the layout says]",
    )
    compress_gradients: str | None = option(
        type=text,
        metavar="HOW",
        help="What ZeRO-0 all-reduces: none, bf16, powersgd:RANK, or "
        "1bit[:WARMUP_STEPS] (1-bit Adam).  [default: as the layout was priced]",
    )
    recompute: str | None = option(
        type=Choice(("dtr",)),
        metavar="dtr",
        help="Dynamic tensor rematerialization, within --memory-budget: what passes "
        "save is evicted, and made again when backward reads it.",
    )
    memory_budget: float | None = option(
        type=FloatRange(0, 1e9, strictly=True),
        metavar="MIB",
        help="With --recompute dtr: MiB of saved tensors on a rank.",
    )
    training: Training = field(default_factory=Training)
    progress: bool = True

    @property
    def asks_to_save(self) -> list[str]:
        """The options given that are of checkpoints."""
        asked = {
            "--resume": self.resume,
            "--checkpoint-every": self.checkpoint_every,
            "--keep-every": self.keep_every,
            "--async-save": self.async_save,
            "--recovery replica": self.recovery == "replica",
            "--on-nan rollback": self.on_nan == "rollback",
        }
        return [name for name, given in asked.items() if given]

    def settings(self, optimizer: str = "adamw") -> Settings:
        """The hyper-parameters of *optimizer*."""
        from runtime.optim import Settings

        return Settings(
            name=optimizer,
            lr=self.lr,
            weight_decay=self.weight_decay,
            clip=self.clip,
        )

    def learning_rate(self) -> LearningRate:
        """The rate of every step; raises Contradiction for one that cannot be."""
        training = self.training
        return LearningRate(
            lr=self.lr,
            steps=training.decay_steps or self.steps,
            kind=training.lr_schedule,
            warmup_steps=training.warmup_steps,
            least=training.min_lr,
        )


def machines(given: str) -> tuple[int, int | None]:
    """``MIN`` or ``MIN:MAX``.

    >>> machines("2"), machines("1:4")
    ((2, None), (1, 4))
    """
    read = re.fullmatch(r"([1-9]\d{0,6})(?::([1-9]\d{0,6}))?", given.strip())
    if read is None or (read[2] and int(read[2]) < int(read[1])):
        raise refuse(given, "write the least machines, or the least and most: 2 or 2:8")
    return int(read[1]), int(read[2]) if read[2] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Options):
    """What the command line asks for; *layout* is the file that it names."""

    layout: Path
    device: str | None = option(
        type=Choice(DEVICES), help="[default: cuda where present]"
    )
    profiles: tuple[Path, ...] = option(
        default=(),
        flag="--profile",
        type=FilePath(),
        multiple=True,
        metavar="FILE",
        help="Measured samples to predict from; may be given several times.  [default: "
        "those that the layout was priced with]",
    )
    checkpoint_dir: Path | None = option(
        type=FilePath(), metavar="DIR", help="Save states there."
    )
    max_restarts: int | None = option(
        type=IntRange(0, 1000),
        help="Restart from the newest checkpoint when a worker dies.  [default: 0; "
        f"with --elastic {ELASTIC_RESTARTS}]",
    )
    nnodes: int = option(default=1, type=IntRange(1), help="Machines of the job.")
    elastic: tuple[int, int | None] | None = option(
        type=machines,
        metavar="MIN[:MAX]",
        help="Machines may leave and join: plan anew for what is there, and go on from "
        "the newest checkpoint.  [default of MAX: --nnodes]",
    )
    rdzv_endpoint: str | None = option(
        type=text, metavar="HOST:PORT", help="Where the nodes of a job meet."
    )
    allow_async: bool = option(
        default=False,
        is_flag=True,
        help="Train a layout whose steps are not flushed: its gradients are stale.",
    )
    observe: Path | None = option(
        type=FilePath(),
        metavar="FILE",
        help="Add what the run measures (collectives, products, optimizer) to this "
        "profile.",
    )
    offload_dir: Path | None = option(
        type=FilePath(),
        metavar="DIR",
        help="Folder of a drive for the states of a layout with --offload-to nvme.  "
        "[default: that of temporary files]",
    )

    @property
    def restarts(self) -> int:
        """How often workers may be started again."""
        usual = 0 if self.elastic is None else ELASTIC_RESTARTS
        return usual if self.max_restarts is None else self.max_restarts

    @property
    def machines(self) -> tuple[int, int]:
        """The least and the most machines that train."""
        least, most = self.elastic or (self.nnodes, None)
        return least, self.nnodes if most is None else most


def require_allowed(
    options: RunOptions, layout: Layout, optimizer: str, priced: str | None = None
) -> None:
    """Raise Contradiction for a layout whose steps are not flushed, unless that is
    allowed and everything else goes with it. It was *priced* with gradients that are
    compressed so."""
    from costmodel.schedule import schedule_called  # NumPy: completion does without

    stale = schedule_called(layout.schedule).stale
    remedy = options.training.stale_gradients
    if stale is None:
        if remedy != "none":
            raise Contradiction(
                f"--stale-gradients {remedy} is about late gradients, and the layout's "
                f"{layout.schedule} has none; leave it out"
            )
        return
    if not options.allow_async:
        raise Contradiction(
            f"the layout's schedule {layout.schedule} does not flush: its gradients "
            "are of weights of earlier updates; add --allow-async to train so, or plan "
            "another layout"
        )
    require_remedy(remedy, optimizer=optimizer, stashes=stale.stashes)
    compressed = options.compress_gradients or priced
    beside = {
        "--elastic": options.elastic is not None,
        "--recovery replica": options.recovery == "replica",
        "--on-nan rollback": options.on_nan == "rollback",
        "--compile": options.compiled,
        "--observe": options.observe is not None,
        "--memory-budget": options.memory_budget is not None,
        "--compress-activations": options.compress_activations is not None,
        "--compress-gradients": compressed not in (None, "none"),
    }
    given = [name for name, said in beside.items() if said]
    if given:
        raise Contradiction(
            f"{given[0]} does not go with {layout.schedule}, whose passes are in "
            "flight from step to step; leave it out"
        )


training_options = collected("Training", Training, "training")
run_options = collected("Run", RunOptions, "options")
