"""`Command`: what the four commands share, on top of click.

Each has `--help` ending with an example, `--version`, `--json` and the exit codes of
`profiles.commandline.commands`. A command is a function under `command(...)`:

    @command("simulate", example="simulate --model gpt-13b --gpus 64 --tp 8")
    @job_options
    @layout_options
    def simulate(job: JobOptions, pins: Pins, *, as_json: bool) -> None:
        \"\"\"What would this layout cost?\"\"\"

and its package's `__main__` enters it with `profiles.commandline.commands.enter`.

How a command is entered and left: which error becomes which exit code.

    0    answered
    1    the question is sound and the answer is no, or it could not be written out
    2    the question is wrong
    70   a mistake of this project's, in one line; MESHWRIGHT_DEBUG=1 adds where
    130  Ctrl-C; more of them, while the process ends, change nothing
    141  whoever read the answer left early, as `head` does (128 + SIGPIPE)

Nothing heavy is imported here, so that Ctrl-C is answered during slow imports too.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any

import click

from profiles import __version__
from profiles.commandline.defaults import COMMANDS, config_option, told
from profiles.commandline.param_types import shown
from profiles.commandline.progress_line import hush, waiting
from profiles.commandline.terminal import emit_json
from profiles.errors import Infeasible, InvalidQuestion, MeshwrightError, NoAnswer

ANSWERED, NO_ANSWER, WRONG_QUESTION = 0, 1, 2
INTERNAL, INTERRUPTED, READER_LEFT = 70, 130, 141
LONGEST_LINE = 2000


def enter(
    where: str, argv: Sequence[str] | None = None, prog: str | None = None
) -> int:
    """Import the command at ``package.room:name``, run it, return its exit code."""
    module, _, name = where.partition(":")

    def body() -> int:
        code: int = getattr(import_module(module), name).run(argv, prog=prog)
        return code

    return guarded(prog or name, body)


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt for the first Ctrl-C alone: the process ends then, and
    whoever presses it again would end it in the middle of ending. For the main thread
    of a process that has nothing to wait for."""
    before = signal.getsignal(signal.SIGINT)

    def once(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or before is not signal.default_int_handler:
        yield  # somebody else has it, or nobody is to
        return
    signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is once:  # there was none
            signal.signal(signal.SIGINT, before)


def guarded(prog: str, body: Callable[[], int]) -> int:
    """The exit code of *body*; whatever it raises is one line on stderr."""
    if sys.stdout is None:
        complain(prog, "standard output is closed; give the answer somewhere to go")
        return NO_ANSWER
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without µ gets ?
    try:
        code = body()
        sys.stdout.flush()  # a full disk shows here, not after the exit code
        return code
    except MeshwrightError as error:
        complain(prog, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        exec("")  # `python -m` ends by a signal if the last exec was interrupted
        complain(prog, "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return READER_LEFT
    except OSError as error:
        return _refused_by_the_system(prog, error)
    except Exception as error:
        return _our_mistake(prog, error)


def complain(prog: str, message: str) -> None:
    """Write *message* on stderr as one printable line, whatever is in it.

    >>> print(one_line("unknown model 'a\\nb'"))
    unknown model 'a b'
    """
    if sys.stderr is None:
        return
    hush()
    with suppress(OSError):  # there is nobody left to tell
        sys.stderr.write(f"{prog}: {one_line(message)}\n")
        sys.stderr.flush()


def one_line(message: str) -> str:
    """*message* on one line, without control characters, cut where it is absurd."""
    words = " ".join(message.split())
    line = "".join(char if char.isprintable() else "?" for char in words)
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def _refused_by_the_system(prog: str, error: OSError) -> int:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        complain(prog, f"cannot use {str(error.filename)!r}: {reason}")
        return WRONG_QUESTION
    complain(prog, f"cannot write the answer: {reason}")
    _abandon_stdout()
    return NO_ANSWER


def _our_mistake(prog: str, error: Exception) -> int:
    if os.environ.get("MESHWRIGHT_DEBUG"):
        import traceback

        traceback.print_exception(error)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    complain(
        prog,
        f"internal error: {what}; this is a bug in meshwright, not in the "
        "question: set MESHWRIGHT_DEBUG=1 to see where, and report it",
    )
    return INTERNAL


def _abandon_stdout() -> None:
    """Point stdout nowhere: the interpreter flushes it once more as it ends."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def answered(command: click.Command, argv: Sequence[str] | None, called: str) -> int:
    """The exit code of *command* for *argv*; what click refuses is InvalidQuestion.

    A shell completes what is typed after `eval "$(_PLAN_COMPLETE=bash_source plan)"`.
    """
    variable = re.sub(r"\W", "_", f"_{called}_COMPLETE".upper())
    if variable in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(command, {}, called, variable, os.environ[variable])
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        with command.make_context(called, arguments) as context:
            command.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.Abort as error:
        raise KeyboardInterrupt from error
    except click.ClickException as error:
        raise InvalidQuestion(in_one_line(error, called)) from error
    return ANSWERED


_PREMISE = f"{__name__}.premise"


class Command(click.Command):
    """A click command that speaks this project's exit codes; see `run`."""

    def __init__(self, *args: Any, example: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example
        if self.name in COMMANDS:
            self.params.append(config_option(self))
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
        called = prog or self.name or "meshwright"
        return guarded(called, lambda: answered(self, argv, called))

    def invoke(self, ctx: click.Context) -> None:
        """Carry it out; where the answer is no, `--json` says so in a document."""
        called = ctx.info_name or "meshwright"
        with told(lambda line: complain(called, line)), waiting(called):
            try:
                super().invoke(ctx)
            except NoAnswer as error:
                if ctx.params["as_json"]:
                    emit_json({**ctx.meta.get(_PREMISE, {}), **no_answer(error)})
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
    shows = {"show_default": True, "help_option_names": ["-h", "--help"]}
    return click.command(
        name, cls=Command, example=example, context_settings=shows, **settings
    )


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
    if isinstance(error, click.NoSuchOption | click.NoSuchCommand):
        kind = "option" if isinstance(error, click.NoSuchOption) else "command"
        given = getattr(error, f"{kind}_name")
        near = " or ".join((error.possibilities or [])[:2])
        hint = f"did you mean {near}?" if near else see
        return f"no such {kind} {shown(given)}; {hint}"
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


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"{context.info_name} (meshwright) {__version__}")
        context.exit()
