"""The command `profile`."""

from __future__ import annotations

import click

from profiles.command import command
from profiles.errors import Unsupported

_ANYTHING = {"ignore_unknown_options": True}


@command(
    "profile",
    example="profile --out samples.json",
    context_settings=_ANYTHING,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def profile(arguments: tuple[str, ...], *, as_json: bool) -> None:
    """What can this machine do? Measures its operators and links.

    This version does not measure: it refuses, and says what works meanwhile.
    """
    raise Unsupported(
        "measuring is not part of this version; `plan` and `simulate` work from "
        "published figures: leave --profile out, as in `plan --model gpt-13b --gpus 64`"
    )
