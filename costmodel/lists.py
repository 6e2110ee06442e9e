"""The command `frameworks`: whose software can be priced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from costmodel.machine import frameworks as known_frameworks
from profiles.commandline import Entry, command, complete_frameworks, print_list


@command("frameworks", example="meshwright frameworks megatron")
@click.argument(
    "words", nargs=-1, metavar="[WORD]…", shell_complete=complete_frameworks
)
def frameworks(words: tuple[str, ...], *, as_json: bool) -> None:
    """Whose software can be priced? Those in whose entry every WORD stands."""
    columns: dict[str, Callable[[Entry], str]] = {
        "name": lambda one: str(one["name"]),
        "base": lambda one: str(one["generation"]),
        "ZeRO": lambda one: str(one["zero"]),
        "hidden": lambda one: ", ".join(one["overlap"]) or "nothing",
    }
    print_list("framework", _frameworks(), columns, words, as_json=as_json)


def _frameworks() -> Iterator[dict[str, Any]]:
    for name, one in known_frameworks().items():
        yield {
            "name": name,
            "generation": one.generation,
            "zero": one.recipe.zero,
            "overlap": sorted(one.overlap.hidden),
            "source": one.source,
        }
