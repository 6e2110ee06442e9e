"""The command `execute`: train with a layout, and hold the prediction against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.simulation import parse_file
from profiles.commandline import (
    Choice,
    FilePath,
    FloatRange,
    IntRange,
    command,
    console,
    emit_json,
    text,
    warn,
)
from profiles.files import read_json, require_package
from runtime.train import Training, training_options

if TYPE_CHECKING:
    from runtime.launch import Probed, Wish

DEVICES = ("cpu", "cuda")
MOST_STEPS = 10**9


@command("execute", example="execute layout.json --steps 100 --data synthetic")
@click.argument("file", type=FilePath(), metavar="LAYOUT.json")
@click.option(
    "--steps",
    type=IntRange(1, MOST_STEPS),
    default=20,
)
@click.option(
    "--data",
    type=text,
    default="synthetic",
    metavar="FILE|synthetic",
    help="A text file (bytes are tokens), tokens in .npy or .bin, or a learnable "
    "synthetic stream.",
)
@click.option("--seed", type=IntRange(0), default=0, metavar="S")
@click.option(
    "--device",
    type=Choice(DEVICES),
    help="[default: cuda where present]",
)
@click.option(
    "--profile",
    "profiles",
    type=FilePath(),
    multiple=True,
    metavar="FILE",
    help="Measured samples to predict from; may be given several times.  [default: "
    "those that the layout was priced with]",
)
@click.option("--lr", type=FloatRange(0, 10, strictly=True), default=3e-4, metavar="X")
@click.option("--weight-decay", type=FloatRange(0, 1), default=0.1, metavar="X")
@click.option(
    "--clip",
    type=FloatRange(0, 1e9),
    default=1.0,
    help="Largest norm of the gradient; 0: do not clip.",
)
@click.option(
    "--checkpoint-dir", type=FilePath(), metavar="DIR", help="Save states there."
)
@click.option(
    "--checkpoint-every",
    type=IntRange(1),
    help="Steps from one to the next.  [default: at the end]",
)
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint.")
@click.option(
    "--max-restarts",
    type=IntRange(0, 1000),
    default=0,
    help="Restart from the newest checkpoint when a worker dies.",
)
@click.option("--nnodes", type=IntRange(1), default=1)
@click.option(
    "--rdzv-endpoint",
    type=text,
    metavar="HOST:PORT",
    help="Where the nodes of a job meet.",
)
@click.option(
    "--observe",
    type=FilePath(),
    metavar="FILE",
    help="Add what the run sees (collectives, products, optimizer) to these samples.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Measure probe-1.json … beside LAYOUT.json (plan --probe K), train the best.",
)
@click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="torch.compile of each layer; minutes before the first step.",
)
@click.option(
    "--offload-dir",
    type=FilePath(),
    metavar="DIR",
    help="Folder of a drive for the states of a layout with --offload-to nvme.  "
    "[default: that of temporary files]",
)
@training_options
@click.option("--record", is_flag=True, help="Report the first step's actions.")
def execute(
    file: Path,
    *,
    training: Training,
    probe: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train with a layout and report how far off the prediction was.

    The layout file comes from `plan --out` or `simulate --out`. Everything that can be
    wrong with it, the data or the checkpoint is said before any process trains.
    """
    require_package("torch", "training", extra="runtime")
    parse_file(read_json(file, what="layout file"))  # torch takes seconds to load
    from runtime.launch import diverged, opening, prepare, run_view

    wish = _wish(file, options, training, progress=not as_json)
    run = prepare(wish)  # what is wrong with it is said before anything is measured
    probes = _probes(wish) if probe else []
    if probes:
        run = prepare(replace(wish, layout=probes[0].file))
    for line in run.warnings:
        warn(line)
    if not as_json:
        console().print(opening(run))
    document = run.carried_out()
    lost = diverged(document)
    if lost is not None:
        warn(lost)
    if probes:
        document["probe"] = [one.document(probes[0]) for one in probes]
        document["picked"] = str(probes[0].file)
    if as_json:
        emit_json(document)
    else:
        console().print(run_view(document))


def _wish(
    file: Path, options: Mapping[str, Any], training: Training, *, progress: bool
) -> Wish:
    """What is asked for; an option of the same name fills each of the other fields."""
    from runtime.launch import Wish
    from runtime.optim import Settings

    rest = dict(options)
    settings = {name: rest.pop(name) for name in ("lr", "weight_decay", "clip")}
    every = rest.pop("checkpoint_every")
    return Wish(
        layout=file,
        settings=Settings(**settings),
        checkpoint_every=every or 0,
        training=training,
        progress=progress,
        **rest,
    )


def _probes(wish: Wish) -> list[Probed]:
    """The measured layouts, the fastest first; what was picked is said."""
    from runtime.launch import probed, words

    def say(line: str) -> None:
        click.echo(line, err=True)

    found = probed(wish, say)
    say(words(found))
    return found
