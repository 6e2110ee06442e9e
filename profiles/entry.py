"""How a command is entered and left: which error becomes which exit code.

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
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType

from profiles.errors import MeshwrightError

ANSWERED, NO_ANSWER, WRONG_QUESTION = 0, 1, 2
INTERNAL, INTERRUPTED, READER_LEFT = 70, 130, 141
LONGEST_LINE = 2000


def enter(
    where: str, argv: Sequence[str] | None = None, prog: str | None = None
) -> int:
    """Import the command at ``package.room:name``, run it, return its exit code."""
    room, _, name = where.partition(":")

    def body() -> int:
        code: int = getattr(import_module(room), name).run(argv, prog=prog)
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
        f"internal error: {what}; this is a mistake in meshwright, not in the "
        "question: set MESHWRIGHT_DEBUG=1 to see where, and report it",
    )
    return INTERNAL


def _abandon_stdout() -> None:
    """Point stdout nowhere: the interpreter flushes it once more as it ends."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
