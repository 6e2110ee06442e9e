"""Groups of options: how several options become one frozen value.

`JobOptions`: what is trained and on what, as a command line gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from profiles.commandline.param_types import (
    LARGEST_SEQUENCE,
    Choice,
    FilePath,
    IntRange,
    text,
)
from profiles.errors import InvalidQuestion, InvalidSpec, UnknownName
from profiles.files import names_a_file
from profiles.hardware import GRADIENT_FORMATS, PRECISIONS

Function = Callable[..., Any]


class GroupedOption(click.Option):
    """An option that `--help` shows under the heading *group*."""

    def __init__(self, *names: Any, group: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


def option(group: str, *names: str, **settings: Any) -> Callable[[Function], Function]:
    """`click.option` under the heading *group*; left out, its value is None."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


def collected(
    function: Function,
    *,
    into: type,
    keyword: str,
    options: tuple[Callable[[Function], Function], ...],
) -> Function:
    """*function* with *options*, which it takes as one *into* called *keyword*."""
    names = [field.name for field in fields(into)]

    @wraps(function)
    def call(**values: Any) -> Any:
        gathered = into(**{name: values.pop(name) for name in names})
        return function(**{keyword: gathered}, **values)

    for add in reversed(options):
        add(call)
    return call


def given(options: Any) -> dict[str, Any]:
    """The options that were not left out, by field name."""
    pairs = ((field.name, getattr(options, field.name)) for field in fields(options))
    return {name: value for name, value in pairs if value is not None and value != ()}


def from_keywords(
    values: Mapping[str, Any], groups: Mapping[type, Callable[[Function], Function]]
) -> tuple[Any, ...]:
    """One value of each class of *groups* from *values* by field name, each checked as
    the command line checks the option that the group's decorator adds.

    Text and numbers are as on the command line, a list is its items with commas
    between; None is left out.

    Raises UnknownName for a name that no group has, InvalidSpec for a wrong value.
    """
    own = {into: [field.name for field in fields(into)] for into in groups}
    known = {name for names in own.values() for name in names}
    for name in values:
        if name not in known:
            raise UnknownName("option", name, known)
    found = []
    for into, add in groups.items():
        options = {one.name: one for one in _options_of(add)}
        mine = {name: values[name] for name in own[into] if name in values}
        checked = {
            name: _checked(options[name], value)
            for name, value in mine.items()
            if value is not None
        }
        found.append(into(**checked))
    return tuple(found)


def _options_of(add: Callable[[Function], Function]) -> list[click.Option]:
    """The options that the decorator *add* gives a command."""
    command = click.command()(add(lambda: None))
    return [one for one in command.params if isinstance(one, click.Option)]


def _checked(option: click.Option, value: Any) -> Any:
    """*value* as *option* has it; raises InvalidSpec where it is none."""
    try:
        if option.multiple:
            several = [value] if isinstance(value, str | Path) else value
            return tuple(_converted(option, one) for one in several)
        return _converted(option, value)
    except click.BadParameter as error:
        raise InvalidSpec(f"{option.name}={error.message}") from None


def _converted(option: click.Option, value: Any) -> Any:
    if option.is_flag != isinstance(value, bool):
        kind = "must be" if option.is_flag else "must not be"
        raise InvalidSpec(f"{option.name}={value!r} {kind} True or False")
    if option.is_flag:
        return value
    listed = isinstance(value, list | tuple)
    text = ",".join(map(str, value)) if listed else str(value)
    return option.type.convert(text, option, None)


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
    _option("--gpus", type=IntRange(), help="Devices to train on."),
    _option(
        "--seq-len",
        type=IntRange(1, LARGEST_SEQUENCE),
        help="Tokens a sequence.  [default: the model's]",
    ),
    _option(
        "--global-batch",
        type=IntRange(1, LARGEST_SEQUENCE),
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
        type=Choice(PRECISIONS),
        help="[default: bf16 where the device has it]",
    ),
    _option(
        "--grad-dtype",
        type=Choice(GRADIENT_FORMATS),
        help="Gradients of 16-bit training.  [default: the framework's]",
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
        type=FilePath(),
        multiple=True,
        metavar="FILE",
        help="Measured samples; may be given several times.",
    ),
)


def job_options(function: Function) -> Function:
    """Add the question's options to a command, which takes them as ``job``."""
    return collected(function, into=JobOptions, keyword="job", options=_OPTIONS)
