"""`meshwright VERB …`: the four commands where their own names are taken.

The verb's package is loaded by name when it is asked for, so this module knows no
package that comes after its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

PACKAGES = {
    "profile": "profiles",
    "simulate": "costmodel",
    "plan": "planner",
    "execute": "runtime",
}
_HELP = """\
Usage: meshwright VERB [OPTIONS]

  plan      which layout should I use?
  simulate  what would this layout cost: seconds, bytes, dollars?
  profile   what can this machine do?
  execute   train with it, and tell me how far off the prediction was

Options:
  --version  Show the version and exit.
  --help     Show this message and exit; `meshwright VERB --help` shows a verb's.

Example:
  meshwright plan --model gpt-13b --gpus 64
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that *argv* names; returns its exit code."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from profiles.commandline.commands import guarded

    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded("meshwright", lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    from profiles import __version__
    from profiles.errors import InvalidQuestion, UnknownName

    if not arguments:
        raise InvalidQuestion(
            f"name a verb: one of {', '.join(PACKAGES)}; see meshwright --help"
        )
    verb, *rest = arguments
    if verb in ("--help", "-h"):
        sys.stdout.write(_HELP)
        return 0
    if verb == "--version":
        sys.stdout.write(f"meshwright {__version__}\n")
        return 0
    if verb not in PACKAGES:
        raise UnknownName("verb", verb, PACKAGES)
    code: int = import_module(f"{PACKAGES[verb]}.__main__").main(
        rest, f"meshwright {verb}"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
