"""`Origin`: what a layout was priced with when its file was written.

The layout says what runs; what of the price it leaves open stands here: options of the
software, the files of measured samples, and what the estimate then was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from costmodel.machine import Profile, read_profile
from costmodel.options import Pins
from profiles.commandline import LONGEST_TEXT, JobOptions, given
from profiles.errors import Contradiction, InvalidSpec, MeshwrightError
from profiles.files import decode
from profiles.limits import require

NAMED_AGAIN: Final = "--profile FILE names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked of the price beside the layout, None where nothing was."""

    framework: str | None = None
    grad_dtype: str | None = None
    overlap: str | None = None
    bucket_mb: float | None = None
    imbalance: float | None = None

    def __post_init__(self) -> None:
        if self.bucket_mb is not None:
            require("bucket", self.bucket_mb, "bucket_mb")
        if self.imbalance is not None:
            require("imbalance", self.imbalance, "imbalance")

    def under(self, job: JobOptions, pins: Pins) -> tuple[JobOptions, Pins]:
        """*job* and *pins*, with these where they leave something out."""
        mine = given(self)
        return (
            replace(job, **{key: mine[key] for key in _left_out(job, mine)}),
            replace(pins, **{key: mine[key] for key in _left_out(pins, mine)}),
        )

    @classmethod
    def of(cls, job: JobOptions, pins: Pins) -> Options:
        """What *job* and *pins* ask of the price."""
        said = {**given(pins), **given(job)}
        names = [item.name for item in fields(cls)]
        return cls(**{name: said[name] for name in names if name in said})


def _left_out(options: JobOptions | Pins, mine: Mapping[str, Any]) -> list[str]:
    names = {item.name for item in fields(options)} - given(options).keys()
    return [name for name in mine if name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A layout's price when its file was written; p10 and p90 in `interval`s."""

    step_time_s: float
    peak_memory_bytes: float
    peak_allocated_bytes: float
    step_time_interval_s: tuple[float, float]
    peak_memory_interval_bytes: tuple[float, float]

    def __post_init__(self) -> None:
        for seconds in (self.step_time_s, *self.step_time_interval_s):
            require("duration", seconds, "an estimated step time")
        for size in (
            self.peak_memory_bytes,
            self.peak_allocated_bytes,
            *self.peak_memory_interval_bytes,
        ):
            require("bytes", size, "an estimated peak memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`profile_files` are where the samples were, one path for each content hash."""

    options: Options = field(default_factory=Options)
    profile_files: tuple[str, ...] = ()
    estimate: Estimated | None = None

    def __post_init__(self) -> None:
        for file in self.profile_files:
            if not 1 <= len(file) <= LONGEST_TEXT:
                raise InvalidSpec(
                    f"a path in profile_files has 1 to {LONGEST_TEXT} characters, got "
                    f"{len(file):,}"
                )

    def written_to(self, folder: Path) -> Origin:
        """As a file in *folder* has it: paths below it go along when it is moved."""
        files = (Path(file).absolute() for file in self.profile_files)
        here = folder.absolute()
        named = (
            file.relative_to(here) if file.is_relative_to(here) else file
            for file in files
        )
        return replace(self, profile_files=tuple(map(str, named)))

    def read_from(self, folder: Path) -> Origin:
        """As a file in *folder* means it."""
        files = (str(folder.absolute() / file) for file in self.profile_files)
        return replace(self, profile_files=tuple(files))

    def document(self) -> dict[str, Any]:
        """The `origin` member of a file, empty where nothing is known."""
        members = {
            "options": given(self.options),
            "profile_files": list(self.profile_files),
            "estimate": self.estimate and asdict(self.estimate),
        }
        return {name: value for name, value in members.items() if value}

    def profile(
        self, hashes: tuple[str, ...]
    ) -> tuple[Profile | None, tuple[str, ...]]:
        """The samples of *hashes* where they were, else None and a line that says why.

        A stranger's file may name any path: it is read as a profile or not at all, and
        what it holds counts only where its content has the hash.
        """
        if not hashes:
            return None, ()
        lost = "this layout was priced with measured samples"
        if not self.profile_files:
            return None, (f"{lost}; {NAMED_AGAIN}",)
        try:
            found = read_profile([Path(file) for file in self.profile_files])
        except MeshwrightError as error:
            return None, (f"{lost} that cannot be read ({error}); {NAMED_AGAIN}",)
        if found is None or found.hashes != hashes:
            files = ", ".join(self.profile_files)
            return None, (f"{lost}, and {files} has others now; {NAMED_AGAIN}",)
        return found, ()


def read_origin(data: object, hashes: tuple[str, ...]) -> Origin:
    """The `origin` member of a file; raises InvalidFile and InvalidSpec."""
    found = decode(data, Origin, what="origin")
    if len(found.profile_files) not in (0, len(hashes)):
        raise InvalidSpec(
            f"origin.profile_files has {len(found.profile_files)} paths and profiles "
            f"{len(hashes)} hashes; give one path for each, or none"
        )
    return found


def require_one_price(one: Options, other: Options) -> None:
    """Raise Contradiction where two layouts are priced for unlike software."""
    for item in fields(Options):
        a, b = (getattr(each, item.name) for each in (one, other))
        if a != b:
            flag = f"--{item.name.replace('_', '-')}"
            raise Contradiction(
                f"--diff: the two layouts were made with {flag} {a or 'left out'} and "
                f"{b or 'left out'}; name the {flag} to price both with"
            )
