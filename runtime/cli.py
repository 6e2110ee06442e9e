"""The command `execute`: train with a layout, and hold the prediction against it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from costmodel.simulation import parse_file
from profiles.commandline import (
    FilePath,
    command,
    console,
    emit_json,
    premise,
    warn,
)
from profiles.errors import RunFailed
from profiles.files import read_json, require_package
from runtime.train import RunOptions, run_options, training_options

if TYPE_CHECKING:
    from runtime.launch import Probed


@command("execute", example="execute layout.json --steps 100 --data synthetic")
@click.argument("layout", type=FilePath(), metavar="LAYOUT.json")
@click.option(
    "--probe",
    is_flag=True,
    help="Measure probe-1.json … beside LAYOUT.json (plan --probe K), train the best.",
)
@training_options
@run_options
def execute(options: RunOptions, *, probe: bool, as_json: bool) -> None:
    """Train with a layout and report how far off the prediction was.

    The layout file comes from `plan --out` or `simulate --out`. Everything that can be
    wrong with it, the data or the checkpoint is reported before any process trains.
    """
    require_package("torch", "training", extra="runtime")
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
        console().print(run_view(document))
    if lost is not None:
        raise RunFailed(lost)


def _probes(options: RunOptions) -> list[Probed]:
    """The measured layouts, the fastest first; says which was picked."""
    from runtime.launch import probed, words

    def say(line: str) -> None:
        click.echo(line, err=True)

    found = probed(options, say)
    say(words(found))
    return found
