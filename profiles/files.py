"""JSON documents from strangers: read with care, written whole or not at all.

`read_json` turns a file into plain values, `decode` turns those into one of our frozen
dataclasses, `write_text` puts a file in place. Each says in one line what is wrong.

Files that a command writes are apart from each other and from those it reads.

Where a run is to write, looked at before any process starts; nothing is made yet.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from profiles.errors import Contradiction, InvalidFile, InvalidSpec, Unsupported
from profiles.units import MiB, format_bytes

# msgspec takes as long to load as this whole package, so functions load it inside.

T = TypeVar("T")
MOST_BYTES = 64 * MiB
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST = 100


def shown(text: object) -> str:
    """A name or path in a message: as it is if it prints on one line, else quoted.

    >>> shown("nodes.json"), shown("two\\nlines")
    ('nodes.json', "'two\\\\nlines'")
    """
    plain = str(text)
    short = plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"
    return short if short and short.isprintable() else repr(short)


def require_name(name: str) -> None:
    """Raise InvalidSpec for a name that could not be printed in a table."""
    if not 1 <= len(name) <= _LONGEST or not name.isprintable():
        raise InvalidSpec(
            f"name {shown(name)} must be printable, 1 to {_LONGEST} characters"
        )


def names_a_file(text: str) -> bool:
    """Whether *text*, which no catalogue knows, is meant as a path.

    >>> names_a_file("nodes.json"), names_a_file("./nodes"), names_a_file("gpt-14b")
    (True, True, False)
    """
    if os.sep in text or text.lower().endswith(".json"):
        return True
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def read_json(path: Path | str, *, what: str, most_bytes: int = MOST_BYTES) -> object:
    """The plain values (dicts, lists, numbers …) of a JSON file; *what* it should be.

    Raises InvalidFile for what is missing, unreadable, no regular file, larger than
    *most_bytes*, not UTF-8, not whole JSON, or nested too deep.
    """
    import msgspec

    name = f"{what} {shown(path)}"
    content = _content(Path(path), name, most_bytes)
    try:
        return msgspec.json.decode(content.removeprefix(_BYTE_ORDER_MARK))
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    except RecursionError as error:
        raise InvalidFile(f"{name} is nested too deeply") from error
    except msgspec.MsgspecError as error:
        raise InvalidFile(f"{name} is truncated or invalid JSON: {error}") from error


def read_text(path: Path | str, *, what: str, most_bytes: int = MOST_BYTES) -> str:
    """A UTF-8 file, *what* it should be; raises InvalidFile as `read_json` does."""
    name = f"{what} {shown(path)}"
    content = _content(Path(path), name, most_bytes)
    try:
        return content.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error


def _content(path: Path, name: str, most_bytes: int) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InvalidFile(f"{name} is a folder; name the file in it")
        if not stat.S_ISREG(mode):
            raise InvalidFile(f"{name} is not a regular file")
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise InvalidFile(f"{name} cannot be read: {why(error)}") from error
    except ValueError as error:  # a NUL in the path, or half a surrogate pair
        raise InvalidFile(f"{name} is not a path: {error}") from error
    if len(content) > most_bytes:
        raise InvalidFile(f"{name} is larger than {format_bytes(most_bytes)}")
    return content


def decode(data: object, kind: type[T], *, what: str) -> T:
    """*data* as a *kind*, one of our dataclasses, checked all the way down.

    Raises InvalidFile with the path of an unknown key, a missing one or a value of the
    wrong type, and InvalidSpec where the dataclass itself refuses the values.
    """
    import msgspec

    for place, key, allowed in _unknown_keys(data, kind, ""):
        from difflib import get_close_matches

        near = get_close_matches(key.lower(), allowed, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(allowed)}"
        where = f" in {place}" if place else ""
        raise InvalidFile(f"{what} has an unknown key {shown(key)}{where}; {hint}")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise InvalidFile(f"{what}: {_located(str(error))}") from error
    except InvalidSpec as error:
        raise InvalidSpec(f"{what}: {error}") from error


def _located(message: str) -> str:
    """msgspec's message with the path in front, as our own messages have it.

    >>> _located("Expected `int`, got `str` - at `$.levels[0].devices`")
    'levels[0].devices: expected int, got str'
    """
    fault, _, place = message.replace("`", "").partition(" - at ")
    fault = fault[:1].lower() + fault[1:]
    place = place.removeprefix("$").removeprefix(".")
    return f"{place}: {fault}" if place else fault


def _unknown_keys(
    data: object, kind: Any, place: str
) -> Iterator[tuple[str, str, list[str]]]:
    """(place, key, allowed keys) of each key that no dataclass in *kind* has."""
    if is_dataclass(kind) and isinstance(kind, type):
        if isinstance(data, dict):
            known = _types_of(kind)
            for key, value in data.items():
                inner = f"{place}.{key}" if place else str(key)
                if key not in known:
                    yield place, str(key), list(known)
                else:
                    yield from _unknown_keys(value, known[key], inner)
        return
    inside = [item for item in get_args(kind) if item not in (None, ..., type(None))]
    container = get_origin(kind)
    if isinstance(data, list) and container in (tuple, list):
        for index, value in enumerate(data):
            yield from _unknown_keys(value, inside[0], f"{place}[{index}]")
    elif isinstance(data, dict) and container in (dict, Mapping):
        for key, value in data.items():
            yield from _unknown_keys(value, inside[-1], f"{place}.{key}")
    elif container not in (tuple, list, dict, Mapping):  # a union
        for item in inside:
            yield from _unknown_keys(data, item, place)


@lru_cache(maxsize=64)
def _types_of(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def write_text(path: Path | str, text: str | bytes) -> None:
    """Put a file (of text in UTF-8) at *path*, whole or not at all: write beside it,
    then rename.

    What was there stays if anything fails. A symbolic link is followed.
    Raises InvalidFile if the folder is missing or closed, the disk is full, or *path*
    exists but is not a regular file.
    """
    name = shown(path)
    try:
        content = text if isinstance(text, bytes) else text.encode()
        target = Path(os.path.realpath(path))
        mode = _mode_of(target, name)
        with _beside(target) as (descriptor, beside):
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(beside, mode)
            os.replace(beside, target)
    except OSError as error:
        raise InvalidFile(f"{name} cannot be written: {why(error)}") from error
    except ValueError as error:  # a NUL in the path, or half a surrogate pair
        raise InvalidFile(f"{name} cannot be written: {error}") from error


@contextmanager
def _beside(target: Path) -> Iterator[tuple[int, str]]:
    """A new file in the folder of *target*, gone afterwards unless it was renamed."""
    from tempfile import mkstemp  # it takes long to load, and reading needs none

    descriptor, beside = mkstemp(dir=target.parent, prefix=".meshwright-")
    try:
        yield descriptor, beside
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _mode_of(target: Path, name: str) -> int:
    """The permissions that a file at *target* has, or that a new one would get."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    if stat.S_ISDIR(mode):
        raise InvalidFile(f"{name} is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        raise InvalidFile(f"{name} exists but is not a regular file")
    return stat.S_IMODE(mode)


def why(error: Exception) -> str:
    """What the system says of *error*, for the end of a sentence."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{reason[:1].lower()}{reason[1:]}"


def require_package(name: str, asked: str, *, extra: str) -> None:
    """Raise Unsupported where an optional package is not installed."""
    from importlib.util import find_spec

    if find_spec(name) is None:
        raise Unsupported(
            f"{asked} needs the package {name}, which is not installed here; "
            f"pip install 'meshwright[{extra}]' brings it"
        )


def require_apart(
    written: Mapping[str, Path | None], read: Iterable[str | Path | None]
) -> None:
    """Raise Contradiction where what is *written*, by option, would take the place of
    something else that is, or of what is *read*. A link is what it leads to."""
    taken = {_place(path): "" for path in read if path is not None}
    for option, path in written.items():
        if path is None:
            continue
        place = _place(path)
        if place in taken:
            other = taken[place]
            role = f"where {other} writes" if other else "read for this answer"
            raise Contradiction(
                f"{option} {shown(path)} is {role}, and would be written over; name "
                "another file"
            )
        taken[place] = option


def _place(path: str | Path) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # its reader or writer says what is wrong with it
        return str(path)


def require_folder(folder: Path, option: str) -> None:
    """Raise InvalidFile where *folder*, as *option* names it, is not there and could
    not be made, or takes no files."""
    try:
        nearest = next(one for one in (folder, *folder.parents) if one.exists())
        with TemporaryFile(dir=nearest):
            pass
    except (OSError, ValueError) as error:
        raise InvalidFile(
            f"the folder {shown(folder)} cannot be made or written: {why(error)}; name "
            f"another with {option}"
        ) from error


def require_file(path: Path, option: str) -> None:
    """Raise InvalidFile where no file, as *option* names it, could be written."""
    if not path.exists():
        require_folder(path.parent, option)
    elif path.is_dir() or not os.access(path, os.W_OK):
        what = "is a folder" if path.is_dir() else "cannot be written"
        raise InvalidFile(f"{shown(path)} {what}; name another file with {option}")


def unwritten(path: object, option: str, error: OSError) -> InvalidFile:
    """What to say where a run could not go on writing what *option* names."""
    return InvalidFile(
        f"{option} {shown(path)} cannot be written: {why(error)}; make room, or name "
        f"another with {option}"
    )
