"""From what a rank computes to all that it does: transfers, gradients, the step.

Sends are asynchronous: they occupy neither the sender's compute nor wait for the
receiver. (In 1F1B two neighbours that both sent with rendezvous would deadlock.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from costmodel.action import Action, Kind, Stream

# What receives a send, on the stage so many further.
RECEIVED: Final = {Kind.SEND_F: (Kind.RECV_F, 1), Kind.SEND_B: (Kind.RECV_B, -1)}
_BACKWARD = (Kind.B, Kind.W)  # what completes a stage's gradients
_INPUT_GRADIENT = (Kind.B, Kind.I)  # what makes the gradient for the stage before


def with_transfers(
    streams: Sequence[Stream], *holders: Sequence[int]
) -> tuple[Stream, ...]:
    """Add receives just before and sends just after each pass, and the step's end.

    *holders* are the ranks of the virtual stages, once for each copy. Neighbours on
    one rank need no transfer. A stage's REDUCE_GRAD follows its last backward; STEP is
    the rank's last action and bears the name of its first stage.

    >>> from costmodel.schedule import streams
    >>> for stream in with_transfers(streams("1f1b", 2, 1, 1), (0, 1)):
    ...     print(*stream)
    0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD 0STEP
    1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD 1STEP
    """
    return tuple(tuple(_complete(stream, holders)) for stream in streams)


def passes(action: Action) -> tuple[Action, ...]:
    """The forward and the backward of an OVERLAP_F_B, else the action itself."""
    return action.parts or (action,)


def crosses(held_by: Sequence[int], stage: int) -> bool:
    """Whether *stage* and the next are held by different ranks."""
    inside = 0 <= stage < len(held_by) - 1
    return inside and held_by[stage] != held_by[stage + 1]


def _complete(stream: Stream, holders: tuple[Sequence[int], ...]) -> Iterator[Action]:
    last = {
        (part.stage, part.copy): part
        for action in stream
        for part in passes(action)
        if part.kind in _BACKWARD
    }
    for action in stream:
        parts = passes(action)
        for part in parts:
            yield from _receive(part, holders[part.copy])
        yield action
        for part in parts:
            yield from _send(part, holders[part.copy])
        for part in parts:
            if last.get((part.stage, part.copy)) == part:
                yield Action(kind=Kind.REDUCE_GRAD, stage=part.stage, copy=part.copy)
    if last:
        stage, copy = min(last)
        yield Action(kind=Kind.STEP, stage=stage, copy=copy)


def _receive(part: Action, held_by: Sequence[int]) -> Iterator[Action]:
    if part.kind is Kind.F and crosses(held_by, part.stage - 1):
        yield _transfer(Kind.RECV_F, part)
    if part.kind in _INPUT_GRADIENT and crosses(held_by, part.stage):
        yield _transfer(Kind.RECV_B, part)


def _send(part: Action, held_by: Sequence[int]) -> Iterator[Action]:
    if part.kind is Kind.F and crosses(held_by, part.stage):
        yield _transfer(Kind.SEND_F, part)
    if part.kind in _INPUT_GRADIENT and crosses(held_by, part.stage - 1):
        yield _transfer(Kind.SEND_B, part)


def _transfer(kind: Kind, part: Action) -> Action:
    return Action(
        kind=kind, stage=part.stage, micro_batch=part.micro_batch, copy=part.copy
    )
