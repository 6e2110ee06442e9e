"""A proof that streams of actions can be executed, and that they do the whole step.

    complete    every pass of every stage and micro-batch once, on the stage's rank
    no leaks    whatever an action makes (saved activations, a message, unsharded
                parameters) another one uses up
    no deadlock the streams run to their ends when carried out
    in order    messages between two ranks are received in the order they are sent

The last three are one execution of a Petri net, `costmodel.stream_net`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from costmodel.action import Action, Kind, Stream
from costmodel.send_receive import passes
from costmodel.stream_grid import refuse
from costmodel.stream_net import Execution

PASSES: Final = (Kind.F, Kind.B, Kind.I, Kind.W)
WHOLE: Final = ([Kind.F, Kind.B], [Kind.F, Kind.I, Kind.W])


def check(
    streams: Sequence[Stream], *holders: Sequence[int], micro_batches: int
) -> None:
    """Prove that *streams* (with transfers) do a step of *micro_batches*.

    *holders* are the ranks of the virtual stages, once for each copy. Raises
    InvalidSpec, with the streams side by side and the place marked.
    """
    _check_at_home(streams, holders)
    _check_complete(streams, len(holders[0]), micro_batches)
    Execution(streams, holders).run()


def _check_at_home(streams: Sequence[Stream], holders: Sequence[Sequence[int]]) -> None:
    for rank, row, part in _parts(streams):
        known = part.copy < len(holders) and part.stage < len(holders[part.copy])
        if not known:
            refuse(streams, f"{part} is of a stage that nobody holds", rank, row)
        if holders[part.copy][part.stage] != rank:
            home = holders[part.copy][part.stage]
            refuse(streams, f"{part} belongs to rank {home}", rank, row)


def _check_complete(streams: Sequence[Stream], stages: int, micro_batches: int) -> None:
    seen: dict[int, Counter[tuple[Kind, int]]] = defaultdict(Counter)
    copies: dict[int, int] = {}
    for rank, row, part in _parts(streams):
        number = part.micro_batch
        if part.kind not in PASSES or number is None:
            continue
        seen[number][part.kind, part.stage] += 1
        if copies.setdefault(number, part.copy) != part.copy:
            why = f"{part} and copy {copies[number]} share a micro-batch"
        elif number >= micro_batches:
            why = f"{part} is beyond the {micro_batches} micro-batches"
        elif seen[number][part.kind, part.stage] > 1:
            why = f"{part} is there twice"
        else:
            continue
        refuse(streams, why, rank, row)
    for number in range(micro_batches):
        for stage in range(stages):
            found = [kind for kind in PASSES if seen[number][kind, stage]]
            if found not in WHOLE:
                names = " ".join(f"{stage}{kind}{number}" for kind in found)
                refuse(
                    streams,
                    f"stage {stage} does {names or 'nothing'} for micro-batch "
                    f"{number}; it needs F and B, or F, I and W",
                )


def _parts(streams: Sequence[Stream]) -> Iterator[tuple[int, int, Action]]:
    """Every action (both of an overlapped pair) with its rank and row."""
    for rank, stream in enumerate(streams):
        for row, action in enumerate(stream):
            for part in passes(action):
                yield rank, row, part
