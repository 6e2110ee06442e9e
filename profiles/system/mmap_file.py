"""`DriveFile`: a file without a name on a drive, mapped into memory part by part.

    ahead    begin to read a part       leave    begin to write it back
    settle   wait until all that was left is written, and let its memory go

Reads and writes go on behind what the caller computes. Few parts that were left are in
the page cache, so that what is not in use takes no memory and a run is as fast
as its drive, not as what memory happened to be free. The file has no name from the
start: nothing is left of it when the process ends, however it ends.

The clock of `profile` and the optimizer of a run use this one module, so that what is
measured is what is done.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from profiles.errors import Unsupported
from profiles.files import shown
from profiles.units import MB, format_bytes

PAGE_BYTES: Final = mmap.PAGESIZE
BUCKET_BYTES: Final = 64 * MB  # that a run's optimizer takes at a time
UNSETTLED: Final = 1  # parts of an optimizer's size, while the next one is updated
PREFIX: Final = "meshwright-states-"
# linux/fs.h: begin to write what is dirty; wait for what is under way.
_WRITE: Final = 2
_WAIT_FOR_ALL: Final = 1 | 2 | 4


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file that come and go together; *first* begins a page."""

    first: int
    size_bytes: int


class DriveFile:
    """*size_bytes* of zeros in a file of *folder*; `read_bytes` and `written_bytes`
    count what went to and fro. At most *unsettled* parts that were left are on their
    way when another one is. Raises Unsupported where *folder* takes no such file."""

    def __init__(
        self, folder: Path, size_bytes: int, *, unsettled: int = UNSETTLED
    ) -> None:
        self.size_bytes, self._unsettled = size_bytes, unsettled
        self.read_bytes = self.written_bytes = 0
        try:
            with tempfile.TemporaryFile(prefix=PREFIX, dir=folder) as file:
                # Really there: no later write finds the drive full.
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                self.map = mmap.mmap(file.fileno(), size_bytes)
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise Unsupported(
                f"{shown(folder)} takes no file of {format_bytes(size_bytes)}: "
                f"{(error.strerror or str(error)).lower()}; make room there, or name a "
                "folder of another drive (--offload-dir DIR)"
            ) from error
        weakref.finalize(self, os.close, self._file)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        _OPEN.add(self)
        self._left: deque[Part] = deque()

    def ahead(self, part: Part) -> None:
        """Begin to read *part*."""
        self.map.madvise(mmap.MADV_WILLNEED, part.first, part.size_bytes)
        self.read_bytes += part.size_bytes

    def leave(self, part: Part) -> None:
        """*part* was written to and is not wanted for now."""
        self.map.madvise(mmap.MADV_DONTNEED, part.first, part.size_bytes)
        _sync(self._file, part, _WRITE)
        self.written_bytes += part.size_bytes
        self._left.append(part)
        self._settle(self._unsettled)

    def write(self, first: int, data: Any) -> None:
        """Put the bytes of *data* at *first*; pages that they fill are not read for
        it, as they would be if they were written to in memory."""
        left = memoryview(data).cast("B")
        while left:
            done = os.pwrite(self._file, left, first)
            left, first = left[done:], first + done

    def forget(self, part: Part) -> None:
        """*part* was read only and is not wanted for now."""
        self.map.madvise(mmap.MADV_DONTNEED, part.first, part.size_bytes)
        self._drop(part)

    def has(self, address: int) -> bool:
        """Whether what is at *address* of this process is in the file."""
        return 0 <= address - self._address < self.size_bytes

    def settle(self) -> None:
        """Wait until all that was left is on the drive; raises OSError if it failed."""
        self._settle(0)

    def _settle(self, most: int) -> None:
        while len(self._left) > most:
            part = self._left.popleft()
            _sync(self._file, part, _WAIT_FOR_ALL)
            self._drop(part)

    def _drop(self, part: Part) -> None:
        """Out of the page cache, where it is clean."""
        os.posix_fadvise(
            self._file, part.first, part.size_bytes, os.POSIX_FADV_DONTNEED
        )


_OPEN: Final[weakref.WeakSet[DriveFile]] = weakref.WeakSet()


def is_on_drive(address: int) -> bool:
    """Whether what is at *address* of this process is in any file on a drive."""
    return any(file.has(address) for file in _OPEN)


def whole_pages(size_bytes: int) -> int:
    """*size_bytes* and what is left of its last page.

    >>> whole_pages(0), whole_pages(1) == PAGE_BYTES
    (0, True)
    """
    return size_bytes + -size_bytes % PAGE_BYTES


def default_folder() -> Path:
    """Where a file goes if nobody says: the folder of temporary files (TMPDIR)."""
    return Path(tempfile.gettempdir())


def require_room(folder: Path, needed_bytes: float, what: str) -> None:
    """Raise Unsupported unless *folder* takes a file of so many bytes, for *what*."""
    try:
        with tempfile.TemporaryFile(prefix=PREFIX, dir=folder):
            free = os.statvfs(folder)
    except OSError as error:
        raise Unsupported(
            f"{what} goes to a file in {shown(folder)}, where none can be made: "
            f"{(error.strerror or str(error)).lower()}; name a folder of a drive with "
            "--offload-dir DIR"
        ) from error
    free_bytes = free.f_bavail * free.f_frsize
    if needed_bytes > free_bytes:
        raise Unsupported(
            f"{what} needs {format_bytes(needed_bytes)} in {shown(folder)}, which has "
            f"{format_bytes(free_bytes)} free; make room, or name a folder of another "
            "drive with --offload-dir DIR"
        )


def in_memory(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether *folder* is in the host's memory (tmpfs, ramfs), not on a drive."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    kinds = {Path(fields[1]): fields[2] for fields in map(str.split, lines)}
    resolved = folder.resolve()
    nearest = next(
        (one for one in (resolved, *resolved.parents) if one in kinds), resolved
    )
    return kinds.get(nearest) in ("tmpfs", "ramfs")


def _sync(file: int, part: Part, how: int) -> None:
    """`sync_file_range(2)`: of data alone, without a flush of the drive's own cache.

    What is in the file is of use to this process only, so nobody needs it after a
    power cut.
    """
    call = _sync_file_range()
    if call is None:
        os.fdatasync(file)
    elif call(file, part.first, part.size_bytes, how):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@lru_cache(maxsize=1)
def _sync_file_range() -> Any:
    """The C library's, or None where it has none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call
