"""The command `execute`."""

from __future__ import annotations

import click

from profiles.command import command
from profiles.errors import Unsupported

_ANYTHING = {"ignore_unknown_options": True}


@command(
    "execute",
    example="execute layout.json --steps 100",
    context_settings=_ANYTHING,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def execute(arguments: tuple[str, ...], *, as_json: bool) -> None:
    """Train with a layout and report how far off the prediction was.

    This version does not train: it refuses, and says what works meanwhile.
    """
    raise Unsupported(
        "training is not part of this version; `plan` and `simulate` work: find a "
        "layout with `plan --model gpt-13b --gpus 64`, price it with `simulate`"
    )
