"""From what a rank computes to all that it does: transfers, gradients, the step.

Sends are asynchronous: they occupy neither the sender's compute nor wait for the
receiver. (In 1F1B two neighbours that both sent with rendezvous would deadlock.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Final

from costmodel.schedule.action import Action, Kind, Stream

# What receives a send, on the stage so many further.
RECEIVED: Final = {Kind.SEND_F: (Kind.RECV_F, 1), Kind.SEND_B: (Kind.RECV_B, -1)}
_Messages = defaultdict[tuple[int, int], deque[Action]]  # by (source, target)
_BACKWARD = (Kind.B, Kind.W)  # what completes a stage's gradients
_INPUT_GRADIENT = (Kind.B, Kind.I)  # what makes the gradient for the stage before


def with_transfers(
    streams: Sequence[Stream], *holders: Sequence[int]
) -> tuple[Stream, ...]:
    """Add receives just before and sends just after each pass, and the step's end.

    *holders* are the ranks of the virtual stages, once for each copy. Neighbours on
    one rank need no transfer. Messages between two ranks are received in the order
    they are sent: what came before the one that is needed is received before it. A
    stage's REDUCE_GRAD follows its last backward; STEP is the rank's last action and
    bears the name of its first stage.

    >>> from costmodel.schedule.schedules import streams
    >>> for stream in with_transfers(streams("1f1b", 2, 1, 1), (0, 1)):
    ...     print(*stream)
    0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD 0STEP
    1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD 1STEP
    """
    sent = _messages(streams, holders)
    return tuple(
        tuple(_complete(rank, stream, holders, sent))
        for rank, stream in enumerate(streams)
    )


def passes(action: Action) -> tuple[Action, ...]:
    """The forward and the backward of an OVERLAP_F_B, else the action itself."""
    return action.parts or (action,)


def crosses(held_by: Sequence[int], stage: int) -> bool:
    """Whether *stage* and the next are held by different ranks."""
    inside = 0 <= stage < len(held_by) - 1
    return inside and held_by[stage] != held_by[stage + 1]


def apart(stream: Stream) -> Stream:
    """The stream with the forward and the backward of each OVERLAP_F_B in turn."""
    return tuple(part for action in stream for part in passes(action))


def _messages(
    streams: Sequence[Stream], holders: tuple[Sequence[int], ...]
) -> _Messages:
    """What each rank receives from each other one, in the order it is sent."""
    found: _Messages = defaultdict(deque)
    for rank, stream in enumerate(streams):
        for part in apart(stream):
            held_by = holders[part.copy]
            for send in _send(part, held_by):
                kind, step = RECEIVED[send.kind]
                link = rank, held_by[part.stage + step]
                found[link].append(_transfer(kind, part, step))
    return found


def _complete(
    rank: int,
    stream: Stream,
    holders: tuple[Sequence[int], ...],
    messages: _Messages,
) -> Iterator[Action]:
    received: set[Action] = set()
    last = {
        (part.stage, part.copy): part
        for action in stream
        for part in passes(action)
        if part.kind in _BACKWARD
    }
    for action in stream:
        parts = passes(action)
        for part in parts:
            for source, wanted in _receive(part, holders[part.copy]):
                if wanted not in received:
                    come = tuple(_come(messages[source, rank], wanted))
                    received.update(come)
                    yield from come
        yield action
        for part in parts:
            yield from _send(part, holders[part.copy])
        for part in parts:
            if last.get((part.stage, part.copy)) == part:
                yield Action(kind=Kind.REDUCE_GRAD, stage=part.stage, copy=part.copy)
    if last:
        stage, copy = min(last)
        yield Action(kind=Kind.STEP, stage=stage, copy=copy)


def _come(messages: deque[Action], wanted: Action) -> Iterator[Action]:
    """The messages of a link up to the *wanted* one; it alone if nobody sends it."""
    while wanted in messages and messages[0] != wanted:
        yield messages.popleft()
    if messages and messages[0] == wanted:
        messages.popleft()
    yield wanted


def _receive(part: Action, held_by: Sequence[int]) -> Iterator[tuple[int, Action]]:
    """What a pass receives, each with the rank that it comes from."""
    if part.kind is Kind.F and crosses(held_by, part.stage - 1):
        yield held_by[part.stage - 1], _transfer(Kind.RECV_F, part)
    if part.kind in _INPUT_GRADIENT and crosses(held_by, part.stage):
        yield held_by[part.stage + 1], _transfer(Kind.RECV_B, part)


def _send(part: Action, held_by: Sequence[int]) -> Iterator[Action]:
    if part.kind is Kind.F and crosses(held_by, part.stage):
        yield _transfer(Kind.SEND_F, part)
    if part.kind in _INPUT_GRADIENT and crosses(held_by, part.stage - 1):
        yield _transfer(Kind.SEND_B, part)


def _transfer(kind: Kind, part: Action, step: int = 0) -> Action:
    return Action(
        kind=kind,
        stage=part.stage + step,
        micro_batch=part.micro_batch,
        copy=part.copy,
    )
