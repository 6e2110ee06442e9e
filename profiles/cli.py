"""The command `profile`: measure this machine, or show what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from profiles.commandline import (
    FilePath,
    command,
    console,
    emit_json,
    progress,
    warn,
)
from profiles.errors import Contradiction, InvalidQuestion
from profiles.files import require_package
from profiles.measure import measure_options
from profiles.samples import content_hash, read_samples, require_writable

if TYPE_CHECKING:
    from collections.abc import Callable

    from profiles.measure import MeasureOptions
    from profiles.samples import Samples


@command("profile", example="profile --out samples.json --quick --model gpt-mini")
@click.option(
    "--out", type=FilePath(), metavar="FILE", help="Write samples to this file."
)
@click.option(
    "--show", type=FilePath(), metavar="FILE", help="Print a file of samples."
)
@measure_options
def profile(
    options: MeasureOptions, *, out: Path | None, show: Path | None, as_json: bool
) -> None:
    """What can this machine do? Measures its operators and links.

    The file of samples is for `plan` and `simulate` (--profile samples.json, and
    --cluster local for the machine itself) and for `execute`.
    """
    if show is not None:
        if out is not None:
            raise Contradiction("--show reads samples and --out measures; give one")
        _answer(read_samples(show), show, as_json=as_json)
        return
    require_package("torch", "measuring", extra="runtime")
    if out is None:
        raise InvalidQuestion(
            "--out is missing; say where the samples go, such as --out samples.json, "
            "or show those of a file with --show samples.json"
        )
    require_writable(out)
    from profiles.measure import measure, resolved
    from profiles.samples import write_samples

    question = resolved(options)
    with _meter() as advance:
        measured = measure(question, advance)
    write_samples(measured.samples, out)
    if measured.noise.noisy:
        warn(f"the machine was not quiet: {measured.noise}; measure again when it is")
    _answer(measured.samples, out, as_json=as_json)


@contextmanager
def _meter() -> Iterator[Callable[[float, float], None]]:
    """Progress over the samples, on stderr where that is a terminal."""
    with progress() as bar:
        task = bar.add_task("measuring", total=None)

        def advance(done: float, of: float) -> None:
            bar.update(task, completed=done, total=of)

        yield advance


def _answer(samples: Samples, file: Path, *, as_json: bool) -> None:
    if as_json:
        emit_json(_document(samples, file))
        return
    from profiles.samples import sample_view

    console().print(sample_view(samples))


def _document(samples: Samples, file: Path) -> dict[str, Any]:
    from dataclasses import asdict

    cluster = None if samples.cluster is None else asdict(samples.cluster)
    return {
        "out": str(file),
        "content_hash": content_hash(samples),
        "machine": dict(samples.machine),
        "cluster": cluster,
        "operators": len(samples.operators),
        "collectives": len(samples.collectives),
        "noise": samples.machine.get("noise"),
    }
