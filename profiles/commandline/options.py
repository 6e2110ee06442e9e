"""Groups of options: how several options become one frozen value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any

import click

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
