"""What a command shows: one JSON document, or tables and progress for a person."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from profiles.commandline.defaults import defaults_document
from profiles.commandline.progress_line import quiet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PIPED_WIDTH = 100
_NARROWEST = 40


def emit_json(document: Mapping[str, Any]) -> None:
    """Write *document* on stdout in the order of its keys, and nothing else.

    What came from a file of defaults is told as `defaults`.
    NumPy scalars and arrays become numbers and lists. Raises ValueError, naming the
    field, for a number that JSON does not have: nothing is written then.
    """
    document = {**document, **defaults_document()}
    try:
        text = json.dumps(document, allow_nan=False, default=_plain)
    except ValueError as error:
        wrong = ", ".join(_not_finite(document, "")) or str(error)
        raise ValueError(f"not a JSON number: {wrong}") from error
    import msgspec  # not needed to complete what is typed

    # `json` with an indent is ten times slower: then it is Python, not C.
    _write_whole(msgspec.json.format(text, indent=2) + "\n")


def _write_whole(text: str) -> None:
    """Write *text* on stdout to its last byte, or raise OSError.

    An unbuffered stdout (PYTHONUNBUFFERED) drops, silently, what a nearly full disk
    does not take of a large document, so this goes to the file beneath, piece by piece.
    """
    quiet()
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:  # not a file: a test's capture, say
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    beneath = getattr(buffer, "raw", buffer)
    left = memoryview(text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    while left:
        left = left[beneath.write(left) or 0 :]


def console(*, stderr: bool = False) -> Console:
    """A console on stdout (tables) or stderr (what is not the answer).

    Escape codes only on a terminal, and none with NO_COLOR; text is never read as
    markup, since names come from users. Where nothing says how wide to write, 100
    columns.
    """
    from rich.console import Console

    class Telling(Console):
        """Rich would end the process by itself where the reader left."""

        def on_broken_pipe(self) -> None:
            raise  # to `profiles.commandline.commands`, which knows the exit code

    quiet()
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
    made = Telling(
        stderr=stderr,
        width=width,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )
    if made.width < _NARROWEST:  # a pseudo-terminal that says 0
        made.width = _PIPED_WIDTH
    return made


def hint(more: str) -> Text:
    """The last line of what is shown without --details."""
    from rich.text import Text

    return Text(f"--details adds {more}", style="dim")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy, without importing it
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON: {value!r}")


def _not_finite(value: Any, where: str) -> Iterator[str]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where} = {value}"
