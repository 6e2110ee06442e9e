"""`Command`: what the four commands share, on top of click.

Each has `--help` ending with an example, `--version`, `--json` and the exit codes of
`profiles.entry`. A command is a function under `command(...)`:

    @command("simulate", example="simulate --model gpt-13b --gpus 64 --tp 8")
    @job_options
    @layout_options
    def simulate(job: JobOptions, pins: Pins, *, as_json: bool) -> None:
        \"\"\"What would this layout cost?\"\"\"

and its package's `__main__` enters it with `profiles.entry.enter`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from profiles import __version__
from profiles.entry import ANSWERED, complain, guarded
from profiles.errors import Infeasible, InvalidQuestion, NoAnswer
from profiles.parameters import shown
from profiles.terminal import emit_json

_PREMISE = f"{__name__}.premise"


class Command(click.Command):
    """A click command that speaks this project's exit codes; see `run`."""

    def __init__(self, *args: Any, example: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example
        self.params += [
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                help="Write one JSON document on stdout, and nothing else there.",
            ),
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_version,
                help="Show the version and exit.",
            ),
        ]

    def run(self, argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
        """Answer *argv* (``sys.argv`` if None) and return the exit code."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        called = prog or self.name or "meshwright"
        return guarded(called, lambda: self._answer(called, arguments))

    def _answer(self, called: str, arguments: list[str]) -> int:
        try:
            with self.make_context(called, arguments) as context:
                self._invoke_or_say_no(context)
        except click.exceptions.Exit as done:
            return done.exit_code
        except click.exceptions.Abort as error:
            raise KeyboardInterrupt from error
        except click.ClickException as error:
            raise InvalidQuestion(in_one_line(error, called)) from error
        return ANSWERED

    def _invoke_or_say_no(self, context: click.Context) -> None:
        try:
            self.invoke(context)
        except NoAnswer as error:
            if context.params["as_json"]:
                emit_json({**context.meta.get(_PREMISE, {}), **no_answer(error)})
            raise

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """The options under their groups' headings, those of every command last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                group = getattr(parameter, "group", None)
                (sections.setdefault(group, []) if group else common).append(record)
        for heading, records in (*sections.items(), ("Options", common)):
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\nExample:\n  {self.example}\n")


def command(
    name: str, *, example: str, **settings: Any
) -> Callable[[Callable[..., None]], Command]:
    """Make a function the command *name*; it takes ``as_json`` and its own options."""
    return click.command(name, cls=Command, example=example, **settings)


def premise(document: Mapping[str, Any]) -> None:
    """Keep what is known of the question, for the JSON document of a "no"."""
    click.get_current_context().meta[_PREMISE] = dict(document)


def no_answer(error: NoAnswer) -> dict[str, Any]:
    """What `--json` says where the answer is no.

    >>> no_answer(Infeasible("too big", constraint="memory", nearest="128 GPUs"))
    {'layout': None, 'infeasible': {'constraint': 'memory', 'nearest': '128 GPUs'}}
    """
    said: dict[str, Any]
    if isinstance(error, Infeasible):
        said = {"constraint": error.constraint, "nearest": error.nearest}
        if error.changes:
            said["changes"] = [dict(one) for one in error.changes]
        if not error.complete:
            said["complete"] = False
    else:
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__)
        said = {"constraint": kind.lower(), "nearest": None}
    return {"layout": None, "infeasible": said}


def warn(message: str) -> None:
    """One line on stderr that is not the answer."""
    context = click.get_current_context(silent=True)
    called = context.find_root().info_name if context else None
    complain(called or "meshwright", f"warning: {message}")


def in_one_line(error: click.ClickException, called: str) -> str:
    """What click found wrong: what was given, what is allowed, what to do."""
    see = f"see {called} --help"
    if isinstance(error, click.NoSuchOption):
        return f"no such option {shown(error.option_name)}; {_like(error) or see}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{_flag(error.param)} is missing; {see}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_flag(error.param)} {error.message}"
    said = error.format_message().rstrip(".")
    return f"{said[:1].lower()}{said[1:]}; {see}"


def _flag(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.human_readable_name


def _like(error: click.NoSuchOption) -> str | None:
    if error.ctx is None:
        return None
    from difflib import get_close_matches

    parameters = error.ctx.command.get_params(error.ctx)
    flags = [flag for item in parameters for flag in (*item.opts, *item.secondary_opts)]
    known = [flag for flag in flags if flag.startswith("--")]
    near = get_close_matches(error.option_name[:60], known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else None


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"{context.info_name} (meshwright) {__version__}")
        context.exit()
