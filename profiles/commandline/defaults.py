"""`meshwright.toml`: options that somebody gives every time, a section per command.

    [common]                    # of plan and simulate: the model, the cluster, the job
    cluster = "dgx-h100"

    [plan]
    top = 3

The file of the working folder is read, or the one that --config or MESHWRIGHT_CONFIG
names. A value counts where the command line says nothing, and nowhere else: it does
not contradict a layout file, a table of runs or another framework's file.

The file in a working folder may be a stranger's: it imports no code, and its paths
stay in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from profiles.commandline.options import JobOptions, flag_of, option_value
from profiles.errors import InvalidFile, InvalidSpec, MeshwrightError, UnknownName
from profiles.files import read_text, shown

FOUND: Final = Path("meshwright.toml")
VARIABLE: Final = "MESHWRIGHT_CONFIG"
COMMON: Final = "common"
COMMANDS: Final = ("plan", "simulate", "profile", "execute")
_NEVER: Final = ("as_json", "version", "config", "help")
_META: Final = f"{__name__}.used"
_QUESTION: Final = frozenset(one.name for one in fields(JobOptions))
_WHAT: Final = "file of defaults"
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file of defaults, and whether somebody named it."""

    path: Path
    named: bool

    def sections(self) -> dict[str, Any]:
        import tomllib  # only where there is a file

        try:
            return tomllib.loads(read_text(self.path, what=_WHAT))
        except tomllib.TOMLDecodeError as error:
            raise InvalidFile(f"{_WHAT} {shown(self.path)}: {error}") from None

    def wrong(self, section: str, why: str) -> MeshwrightError:
        return InvalidFile(f"{shown(self.path)}, [{section}]: {why}")


def config_option(command: click.Command) -> click.Option:
    """`--config FILE` of *command*, which puts the file's values in place."""

    def read(context: click.Context, _: click.Parameter, given: str | None) -> None:
        if not context.resilient_parsing:
            _put(context, command, given)

    return click.Option(
        ["--config"],
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=read,
        help="A file of defaults.  [default: meshwright.toml, where it is there]",
    )


def _put(context: click.Context, command: click.Command, given: str | None) -> None:
    named = given or os.environ.get(VARIABLE)
    file = _File(path=Path(named or FOUND), named=bool(named))
    if named == os.devnull or (not named and not FOUND.is_file()):
        return
    values = dict(_values(file, command))
    context.default_map = {**(context.default_map or {}), **values}
    context.meta[_META] = _Used(file=file.path.name, values=values)


def _values(file: _File, command: click.Command) -> Iterator[tuple[str, Any]]:
    """The file's values for *command*, by parameter; those of its own section win."""
    sections = file.sections()
    for name, section in sections.items():
        if name not in (COMMON, *COMMANDS) or not isinstance(section, dict):
            sections_are = ", ".join(f"[{one}]" for one in (COMMON, *COMMANDS))
            raise InvalidFile(
                f"{shown(file.path)}: {name!r} is no section; there are {sections_are}"
            )
    options = {
        str(one.name): one
        for one in command.params
        if isinstance(one, click.Option) and one.name not in _NEVER
    }
    own = {flag_of(one)[2:]: one for one in options.values()}
    asks = options.keys() >= _QUESTION  # else its --cluster, say, is something else
    common = {
        name.replace("_", "-"): options[name] if asks else None for name in _QUESTION
    }
    parts: tuple[tuple[str, Mapping[str, click.Option | None]], ...]
    parts = ((COMMON, common), (command.name or "", own))
    for name, known in parts:
        for key, value in sections.get(name, {}).items():
            flag = key.replace("_", "-")
            if flag not in known:
                raise file.wrong(name, str(UnknownName("option", key, known)))
            option = known[flag]
            if option is not None:
                yield str(option.name), _checked(file, name, option, value)


def _checked(file: _File, section: str, option: click.Option, value: Any) -> Any:
    """*value* as a command line would say it."""
    try:
        said = option_value(option, value)
    except InvalidSpec as error:
        raise file.wrong(section, str(error)) from None
    if option.name == "model" and ":" in str(value) and os.sep not in str(value):
        raise file.wrong(
            section, f"model={value!r} would import code; give it on the command line"
        )
    if isinstance(option.type, click.Path) and not file.named:
        for path in said if isinstance(said, tuple) else (said,):
            if Path(path).is_absolute() or ".." in Path(path).parts:
                raise file.wrong(
                    section,
                    f"{path!r} is outside this folder, which only a file that is named "
                    f"may say: --config {FOUND}",
                )
    return said


@dataclass(slots=True)
class _Used:
    """What of a file of defaults counts, as far as is known."""

    file: str
    values: dict[str, Any]


def _used() -> _Used | None:
    """What still counts of the file, of what the command line does not say."""
    context = click.get_current_context(silent=True)
    used = None if context is None else context.meta.get(_META)
    if context is None or used is None:
        return None
    values = {
        name: value
        for name, value in used.values.items()
        if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    }
    return _Used(used.file, values)


def without_defaults(
    options: Options, only: Iterable[str] | None = None, *, but: Iterable[str] = ()
) -> Options:
    """*options*, and groups of options in them, without what *only* a file of defaults
    says, *but* for some names: for a question that something else answers."""
    used = _used()
    if used is None:
        return options
    kept, changed = {*but}, dict[str, Any]()
    chosen = used.values.keys() & (used.values if only is None else set(only))
    for one in fields(options):  # type: ignore[arg-type]
        value = getattr(options, one.name)
        if is_dataclass(value):
            changed[one.name] = without_defaults(value, only, but=kept)
        elif one.name in chosen - kept:
            changed[one.name] = one.default
            click.get_current_context().meta[_META].values.pop(one.name, None)
    return replace(options, **changed)  # type: ignore[type-var]


def defaults_document() -> dict[str, Any]:
    """What counts of a file of defaults, as a member of a JSON document."""
    used = _used()
    if used is None or not used.values:
        return {}
    return {"defaults": {"file": used.file, **used.values}}


@contextmanager
def told(say: Any) -> Iterator[None]:
    """Say at the end which values came from a file of defaults."""
    try:
        yield
    finally:
        used = _used()
        if used is not None and used.values:
            say(f"from {used.file}: {_words(used.values)}")


def _words(values: Mapping[str, Any]) -> str:
    """As options would say it.

    >>> _words({"seq_len": "4096", "details": True, "profile": ("a", "b")})
    'seq-len 4096, details, profile a b'
    """
    return ", ".join(
        " ".join([name.replace("_", "-"), *_said(value)])
        for name, value in values.items()
    )


def _said(value: Any) -> Iterable[str]:
    if isinstance(value, bool):
        return () if value else ("off",)
    return value if isinstance(value, tuple) else (str(value),)
