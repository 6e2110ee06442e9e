"""`meshwright VERB …`: the four commands where their own names are taken, and lists of
what the catalogues have.

The verb's package is loaded by name when it is asked for, so this module knows no
package that comes after its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import click

from profiles import __version__

VERBS = {
    "plan": ("planner", "which layout should I use?"),
    "simulate": ("costmodel", "what would this layout cost: seconds, bytes, dollars?"),
    "profile": ("profiles", "what can this machine do?"),
    "execute": (
        "runtime",
        "train with it, and tell me how far off the prediction was",
    ),
}

LISTS = {
    "models": ("profiles", "which models are known?"),
    "clusters": ("profiles", "which clusters are known?"),
    "devices": ("profiles", "which devices are known?"),
    "frameworks": ("costmodel", "whose software can be priced?"),
}


HOMES = {
    **{name: f"{package}.cli:{name}" for name, (package, _) in VERBS.items()},
    **{name: f"{package}.lists:{name}" for name, (package, _) in LISTS.items()},
}


class Verbs(click.Group):
    """Hands what follows a command's name to that command."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, with its options, where a shell completes them."""
        if ctx.resilient_parsing and cmd_name in HOMES:
            module, _, name = HOMES[cmd_name].partition(":")
            found: click.Command = getattr(import_module(module), name)
            return found
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  meshwright plan --model gpt-13b --gpus 64",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def meshwright(context: click.Context) -> None:
    """Plans distributed training; `meshwright COMMAND --help` shows a command's
    options."""
    from profiles.errors import InvalidQuestion

    if context.invoked_subcommand is None:
        raise InvalidQuestion(
            f"name a command: one of {', '.join((*VERBS, *LISTS))}; see meshwright "
            "--help"
        )


def _add(name: str, question: str, run: Callable[[tuple[str, ...], str], int]) -> None:
    """Add a command that hands all it is given to *run*, with what it is called."""

    @meshwright.command(
        name,
        short_help=question,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def command(context: click.Context, arguments: tuple[str, ...]) -> None:
        context.exit(run(arguments, f"meshwright {name}"))


def _verb(package: str, arguments: tuple[str, ...], prog: str) -> int:
    code: int = import_module(f"{package}.__main__").main(arguments, prog)
    return code


def _list(where: str, arguments: tuple[str, ...], prog: str) -> int:
    from profiles.commandline.commands import enter

    return enter(where, arguments, prog)


for _name, (_package, _question) in VERBS.items():
    _add(_name, _question, partial(_verb, _package))
for _name, (_package, _question) in LISTS.items():
    _add(_name, _question, partial(_list, HOMES[_name]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that *argv* names; returns its exit code."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from profiles.commandline.commands import answered, guarded

    return guarded("meshwright", lambda: answered(meshwright, argv, "meshwright"))


if __name__ == "__main__":
    sys.exit(main())
