"""The command `execute`: train with a layout, and hold the prediction against it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from profiles.commandline import (
    FilePath,
    command,
    console,
    emit_json,
    premise,
    quiet,
    warn,
)
from profiles.errors import RunFailed
from profiles.files import read_json, require_package
from runtime.train import RunOptions, run_options, training_options

if TYPE_CHECKING:
    from runtime.launch import Probed

NO_ANSWER: Final = 1


@command("execute", example="execute layout.json --steps 100 --data synthetic")
@click.argument("layout", type=FilePath(), metavar="LAYOUT.json", required=False)
@click.option(
    "--verify",
    type=FilePath(),
    metavar="DIR",
    help="Only check the hashes of all checkpoints in DIR, and their chain; with "
    "LAYOUT.json that the newest was trained with it too.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Measure probe-1.json … beside LAYOUT.json (plan --probe K), train the best.",
)
@click.option(
    "--details",
    is_flag=True,
    help="Show where the step went, predicted beside measured, and every collective.",
)
@training_options
@run_options
def execute(
    options: RunOptions,
    *,
    probe: bool,
    verify: Path | None,
    details: bool,
    as_json: bool,
) -> None:
    """Train with a layout and report how far off the prediction was.

    The layout file comes from `plan --out` or `simulate --out`. Everything that can be
    wrong with it, the data or the checkpoint is reported before any process trains.
    """
    require_package("torch", "training", extra="runtime")
    named = click.get_current_context().params["layout"] is not None
    if verify is not None:
        _verify(verify, options.layout if named else None, as_json=as_json)
        return
    if not named:
        raise click.MissingParameter(param=_argument())
    from costmodel.simulation import parse_file

    # torch takes seconds to load: a wrong file is refused before.
    parse_file(read_json(options.layout, what="layout file"))
    from runtime.launch import diverged, opening, prepare, run_view

    options = replace(options, progress=not as_json)
    run = prepare(options)  # what is wrong with it is said before anything is measured
    probes = _probes(options) if probe else []
    if probes:
        run = prepare(replace(options, layout=probes[0].file))
    for line in run.warnings:
        warn(line)
    if not as_json:
        console().print(opening(run))
    quiet()  # steps are printed as they are done
    document = run.execute()
    if probes:
        document["probe"] = [one.document(probes[0]) for one in probes]
        document["picked"] = str(probes[0].file)
    lost = diverged(document)
    if lost is not None:
        premise(document)
    elif as_json:
        emit_json(document)
    if not as_json:
        console().print(run_view(document, details=details))
    if lost is not None:
        raise RunFailed(lost)
    if document.get("unsaved"):
        warn(f"the last state is not on disk: {document['unsaved']}")
        raise click.exceptions.Exit(NO_ANSWER)


def _argument() -> click.Parameter:
    command = click.get_current_context().command
    return next(one for one in command.params if one.name == "layout")


def _verify(folder: Path, layout: Path | None, *, as_json: bool) -> None:
    """What every checkpoint in *folder* is worth; exit code 1 where one is damaged, or
    the newest was not trained with *layout*."""
    from costmodel.simulation import file_document, read_layout_file
    from runtime.checkpoint import (
        layout_hash,
        verified,
        verified_document,
        verified_view,
    )

    wanted = None
    if layout is not None:
        wanted = layout_hash(file_document(read_layout_file(layout)))
    verdicts = verified(folder, wanted)
    faults = [fault for one in verdicts for fault in one.faults]
    if as_json:
        emit_json(verified_document(folder, verdicts))
    else:
        console().print(verified_view(verdicts))
    for fault in faults:
        warn(fault)
    if faults:
        raise click.exceptions.Exit(NO_ANSWER)


def _probes(options: RunOptions) -> list[Probed]:
    """The measured layouts, the fastest first; says which was picked."""
    from runtime.launch import probed, words

    def say(line: str) -> None:
        click.echo(line, err=True)

    found = probed(options, say)
    say(words(found))
    return found
