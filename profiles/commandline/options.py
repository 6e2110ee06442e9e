"""Groups of options: how several options become one frozen value.

`JobOptions`: what is trained and on what, as a command line gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from profiles.commandline.completion import (
    complete_clusters,
    complete_frameworks,
    complete_models,
)
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


def option(default: Any = None, **settings: Any) -> Any:
    """A field of a group of options, and what click is told of it; its *flag* follows
    from its name where it is not given."""
    return field(default=default, metadata=settings)


def switch(**settings: Any) -> Any:
    """A field that its option sets and ``--no-…`` of it unsets; left out it is None."""
    return option(switch=True, **settings)


def collected(group: str, into: type, keyword: str) -> Callable[[Function], Function]:
    """What adds the fields of *into* to a command as options under the heading *group*;
    the command takes all of them as one value called *keyword*. A field that is no
    `option` comes from the decorators above."""
    options = []
    for one in fields(into):
        if not one.metadata:
            continue
        settings = dict(one.metadata)
        flag = settings.pop("flag", f"--{one.name.replace('_', '-')}")
        both = f"{flag}/--no-{flag[2:]}" if settings.pop("switch", False) else flag
        settings |= {"cls": GroupedOption, "group": group, "default": one.default}
        options.append(click.option(both, one.name, **settings))

    def add(function: Function) -> Function:
        @wraps(function)
        def call(**values: Any) -> Any:
            names = [one.name for one in fields(into) if one.name in values]
            gathered = into(**{name: values.pop(name) for name in names})
            return function(**{keyword: gathered}, **values)

        for each in reversed(options):
            each(call)
        return call

    return add


def given(options: Any) -> dict[str, Any]:
    """The options that were not left out, by field name."""
    pairs = ((field.name, getattr(options, field.name)) for field in fields(options))
    return {name: value for name, value in pairs if value is not None and value != ()}


def flags(options: Any) -> list[str]:
    """The same, as they are written on a command line."""
    return [f"--{name.replace('_', '-')}" for name in given(options)]


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


def flag_of(option: click.Option) -> str:
    """The longest of its names.

    >>> flag_of(click.Option(["-m", "--model"]))
    '--model'
    """
    return max(option.opts, key=len)


def option_value(option: click.Option, value: Any) -> Any:
    """*value*, of a file, as a command line says it: text, several texts, or whether a
    flag is given. Raises InvalidSpec where *option* cannot be that."""
    scalar = isinstance(value, str | int | float)
    if not scalar and not isinstance(value, list | tuple):
        raise InvalidSpec(f"{flag_of(option)[2:]} must be text, a number or a list")
    listed = () if scalar else value
    if any(isinstance(one, bool | list | dict) for one in listed):
        raise InvalidSpec(f"{flag_of(option)[2:]} must be a list of texts")
    _checked(option, value)
    if option.is_flag:
        return value
    several = [value] if scalar else value
    if option.multiple or option.nargs > 1:
        return tuple(map(str, several))
    return ",".join(map(str, several))


def _checked(option: click.Option, value: Any) -> Any:
    """*value* as *option* has it; raises InvalidSpec where it is none."""
    try:
        if option.multiple or option.nargs > 1:
            several = [value] if isinstance(value, str | Path) else value
            if not isinstance(several, list | tuple):
                several = [several]
            if option.nargs > 1 and len(several) != option.nargs:
                raise click.BadParameter(f"{value!r} must be {option.nargs} values")
            if isinstance(option.type, click.Tuple):
                each = zip(option.type.types, map(str, several), strict=True)
                return tuple(kind.convert(one, option, None) for kind, one in each)
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


_LIKE = {"model": "gpt-13b", "gpus": "64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Each is None (or empty) where the command line does not say."""

    model: str | None = option(
        type=text,
        shell_complete=complete_models,
        metavar="NAME|FILE|MODULE:FACTORY",
        help="Catalogue name, model file, Hugging Face config.json or its folder, or "
        "package.module:factory of any nn.Module.",
    )
    cluster: str | None = option(
        type=text,
        shell_complete=complete_clusters,
        metavar="NAME|FILE",
        help="Catalogue name, cluster file, or local.  [default: dgx-a100-80gb]",
    )
    gpus: int | None = option(type=IntRange(), help="Devices to train on.")
    seq_len: int | None = option(
        type=IntRange(1, LARGEST_SEQUENCE),
        help="Tokens per sequence.  [default: the model's]",
    )
    global_batch: int | None = option(
        type=IntRange(1, LARGEST_SEQUENCE),
        help="Sequences per step.  [default: the model's tokens per step]",
    )
    optimizer: str | None = option(
        type=text,
        metavar="NAME",
        help="adamw, adamw-bf16-moments, adam, lamb, sgd-momentum, sgd.  [default: "
        "adamw]",
    )
    precision: str | None = option(
        type=Choice(PRECISIONS),
        metavar="FORMAT",
        help=f"Number format of training: {', '.join(PRECISIONS)}.  [default: bf16 "
        "where the device has it]",
    )
    grad_dtype: str | None = option(
        type=Choice(GRADIENT_FORMATS),
        help="Format of gradients in 16-bit training.  [default: the framework's]",
    )
    framework: str | None = option(
        type=text,
        shell_complete=complete_frameworks,
        metavar="NAME",
        help="Framework whose costs are priced and, in plan, whose features limit the "
        "search: megatron-core, fsdp2 …  [default: meshwright]",
    )
    profile: tuple[Path, ...] = option(
        default=(),
        type=FilePath(),
        multiple=True,
        metavar="FILE",
        help="Measured samples; may be given several times.",
    )

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


job_options = collected("Question", JobOptions, "job")
