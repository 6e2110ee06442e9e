"""Groups of options: how several options become one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from profiles.errors import InvalidSpec, UnknownName

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
