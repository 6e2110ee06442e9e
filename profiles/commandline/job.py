"""`JobOptions`: what is trained and on what, as a command line gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from profiles.commandline.options import Function, collected, option
from profiles.commandline.param_types import LARGEST_SEQUENCE, one_of, path, text, whole
from profiles.errors import InvalidQuestion
from profiles.files import names_a_file
from profiles.hardware import GRADIENT_FORMATS, PRECISIONS

_option = partial(option, "Question")
_LIKE = {"model": "gpt-13b", "gpus": "64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Each is None (or empty) where the command line does not say."""

    model: str | None = None
    cluster: str | None = None
    gpus: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    optimizer: str | None = None
    precision: str | None = None
    grad_dtype: str | None = None
    framework: str | None = None
    profile: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[str | Path, ...]:
        """What is read, where the model and the cluster are no catalogue's."""
        named = [one for one in (self.model, self.cluster) if one is not None]
        files = [one for one in named if names_a_file(one)]
        return (*files, *(Path(one) / "config.json" for one in files), *self.profile)

    def require(self, *names: str) -> None:
        """Raise InvalidQuestion for the first of *names* that was left out."""
        for name in names:
            if getattr(self, name) is None:
                flag = f"--{name.replace('_', '-')}"
                like = f", such as {flag} {_LIKE[name]}" if name in _LIKE else ""
                raise InvalidQuestion(f"{flag} is missing; give it{like}")


_OPTIONS: tuple[Callable[[Function], Function], ...] = (
    _option(
        "--model",
        type=text,
        metavar="NAME|FILE",
        help="Catalogue name, model file, or Hugging Face config.json or its folder.",
    ),
    _option(
        "--cluster",
        type=text,
        metavar="NAME|FILE",
        help="Catalogue name, cluster file, or local.  [default: dgx-a100-80gb]",
    ),
    _option("--gpus", type=whole(), metavar="N", help="Devices to train on."),
    _option(
        "--seq-len",
        type=whole(most=LARGEST_SEQUENCE),
        metavar="N",
        help="Tokens a sequence.  [default: the model's]",
    ),
    _option(
        "--global-batch",
        type=whole(most=LARGEST_SEQUENCE),
        metavar="N",
        help="Sequences a step.  [default: the model's, of as many tokens]",
    ),
    _option(
        "--optimizer",
        type=text,
        metavar="NAME",
        help="adamw, adamw-bf16-moments, adam, lamb, sgd-momentum, sgd.  [default: "
        "adamw]",
    ),
    _option(
        "--precision",
        type=one_of(*PRECISIONS),
        metavar="NAME",
        help=f"{', '.join(PRECISIONS)}.  [default: bf16 where the device has it]",
    ),
    _option(
        "--grad-dtype",
        type=one_of(*GRADIENT_FORMATS),
        metavar="NAME",
        help=f"Gradients of 16-bit training: {', '.join(GRADIENT_FORMATS)}.  "
        "[default: the framework's]",
    ),
    _option(
        "--framework",
        type=text,
        metavar="NAME",
        help="Whose software the price is for, and in plan the layouts: megatron-core, "
        "megatron-deepspeed, fsdp2 …  [default: ours]",
    ),
    _option(
        "--profile",
        type=path,
        multiple=True,
        metavar="FILE",
        help="Measured samples; may be given several times.",
    ),
)


def job_options(function: Function) -> Function:
    """Add the question's options to a command, which takes them as ``job``."""
    return collected(function, into=JobOptions, keyword="job", options=_OPTIONS)
