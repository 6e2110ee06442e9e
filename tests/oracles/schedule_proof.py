"""A proof that streams of actions can be executed, and that they do the whole step.

    complete     every pass of every stage and micro-batch once, on the stage's rank
    no leaks     whatever an action makes (saved activations, a message, unsharded
                 parameters) another one uses
    in order     messages between two ranks are received in the order they are sent
    no deadlock  streams, and what their actions await, are a graph without a cycle

Sends do not wait for their receivers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final

from costmodel.schedule.action import Action, Kind, Stream
from costmodel.schedule.communication import RECEIVED, crosses, passes
from profiles.errors import InvalidSpec

Token = tuple[str, int, int | None, int]  # what, stage, micro-batch, copy
Place = tuple[int, int]  # rank, position in its stream
PASSES: Final = (Kind.F, Kind.B, Kind.I, Kind.W)
WHOLE: Final = ([Kind.F, Kind.B], [Kind.F, Kind.I, Kind.W])
SENT: Final = {received: sent for sent, (received, _) in RECEIVED.items()}


def check(
    streams: Sequence[Stream], *holders: Sequence[int], micro_batches: int
) -> None:
    """Prove that *streams* (with transfers) do a step of *micro_batches*.

    *holders* are the ranks of the virtual stages, once for each copy. Raises
    InvalidSpec.
    """
    parts = [
        ((rank, row), part)
        for rank, stream in enumerate(streams)
        for row, action in enumerate(stream)
        for part in passes(action)
    ]
    for (rank, row), part in parts:
        if part.copy >= len(holders) or part.stage >= len(holders[part.copy]):
            raise InvalidSpec(f"{part} (rank {rank}, {row}) is of no stage")
        home = holders[part.copy][part.stage]
        if home != rank:
            raise InvalidSpec(f"{part} (rank {rank}, {row}) belongs to rank {home}")
    _require_complete([part for _, part in parts], len(holders[0]), micro_batches)
    _require_in_order(parts, holders)
    _require_an_order(parts, holders)


def _require_complete(parts: list[Action], stages: int, micro_batches: int) -> None:
    seen: Counter[tuple[Kind, int, int | None]] = Counter(
        (part.kind, part.stage, part.micro_batch)
        for part in parts
        if part.kind in PASSES
    )
    copies: dict[int | None, int] = {}
    for part in (part for part in parts if part.kind in PASSES):
        number = part.micro_batch
        if copies.setdefault(number, part.copy) != part.copy:
            raise InvalidSpec(f"{part} and copy {copies[number]} share a micro-batch")
        if number is None or number >= micro_batches:
            raise InvalidSpec(f"{part} is beyond the {micro_batches} micro-batches")
    for number in range(micro_batches):
        for stage in range(stages):
            found = [kind for kind in PASSES if seen[kind, stage, number]]
            twice = any(seen[kind, stage, number] > 1 for kind in found)
            if twice or found not in WHOLE:
                names = " ".join(f"{stage}{kind}{number}" for kind in found)
                raise InvalidSpec(f"stage {stage} does {names} for {number}")


def _require_in_order(
    parts: list[tuple[Place, Action]], holders: Sequence[Sequence[int]]
) -> None:
    """Of each link, what is sent and what is received, in their streams' order."""
    sent: dict[tuple[int, int], list[Token]] = defaultdict(list)
    received: dict[tuple[int, int], list[Token]] = defaultdict(list)
    for (rank, _), part in parts:
        if part.kind in RECEIVED:
            target = part.stage + RECEIVED[part.kind][1]
            if 0 <= target < len(holders[0]):
                link = rank, holders[part.copy][target]
                sent[link].append(_token(part.kind, part))
        elif part.kind in SENT:
            kind = SENT[part.kind]
            source = part.stage - RECEIVED[kind][1]
            if 0 <= source < len(holders[0]):
                link = holders[part.copy][source], rank
                token = (str(kind), source, part.micro_batch, part.copy)
                received[link].append(token)
    for link in {*sent, *received}:
        for one, other in zip(sent[link], received[link], strict=False):
            if one != other:
                raise InvalidSpec(f"over {link} comes {one}, not {other}")


def _require_an_order(
    parts: list[tuple[Place, Action]], holders: Sequence[Sequence[int]]
) -> None:
    """Every token is made as often as it is used, each before its use."""
    backwards = Counter(
        _of_stage("backward", part)
        for _, part in parts
        if part.kind in (Kind.B, Kind.W)
    )
    made: dict[Token, list[Place]] = defaultdict(list)
    used: dict[Token, list[Place]] = defaultdict(list)
    graph: TopologicalSorter[Place] = TopologicalSorter()
    for before, after in pairwise(sorted({place for place, _ in parts})):
        if before[0] == after[0]:
            graph.add(after, before)
    for place, part in parts:
        for token in _makes(part, holders[part.copy]):
            made[token].append(place)
        for token in _uses(part, len(holders[0]), backwards):
            used[token].append(place)
        if part.kind is Kind.STEP:
            for token in backwards:
                if holders[token[3]][token[1]] == place[0]:
                    used["reduced gradients", *token[1:]].append(place)
    for token in {**made, **used}:
        if len(made[token]) != len(used[token]):
            counts = f"{len(made[token])} times, used {len(used[token])}"
            raise InvalidSpec(f"{token} is made {counts}")
        for source, target in zip(made[token], used[token], strict=True):
            graph.add(target, source)
    try:
        graph.prepare()
    except CycleError as error:
        raise InvalidSpec(f"nothing can go on: {error.args[1]}") from error


def _uses(part: Action, stages: int, backwards: Counter[Token]) -> Iterator[Token]:
    match part.kind:
        case Kind.F if part.stage > 0:
            yield _token("input", part)
        case Kind.B | Kind.I:
            yield _token("activations", part)
            if part.stage < stages - 1:
                yield _token("gradient", part)
        case Kind.W:
            yield _token("weight work", part)
        case Kind.SEND_F:
            yield _token("output", part)
        case Kind.SEND_B:
            yield _token("input gradient", part)
        case Kind.RECV_F | Kind.RECV_B:
            kind = SENT[part.kind]
            yield _token(kind, part, -RECEIVED[kind][1])
        case Kind.D2H:
            yield _token("activations", part)
        case Kind.H2D:
            yield _token("activations on the host", part)
        case Kind.RESHARD:
            yield _of_stage("parameters", part)
        case Kind.REDUCE_GRAD:
            token = _of_stage("backward", part)
            yield from [token] * max(backwards[token], 1)


def _makes(part: Action, held_by: Sequence[int]) -> Iterator[Token]:
    stage, last = part.stage, len(held_by) - 1
    match part.kind:
        case Kind.F:
            yield _token("activations", part)
            if crosses(held_by, stage):
                yield _token("output", part)
            elif stage < last:
                yield _token("input", part, 1)
        case Kind.B | Kind.I:
            if crosses(held_by, stage - 1):
                yield _token("input gradient", part)
            elif stage > 0:
                yield _token("gradient", part, -1)
            whole = part.kind is Kind.B
            yield _of_stage("backward", part) if whole else _token("weight work", part)
        case Kind.W:
            yield _of_stage("backward", part)
        case Kind.SEND_F | Kind.SEND_B:
            yield _token(part.kind, part)
        case Kind.RECV_F:
            yield _token("input", part)
        case Kind.RECV_B:
            yield _token("gradient", part)
        case Kind.D2H:
            yield _token("activations on the host", part)
        case Kind.H2D:
            yield _token("activations", part)
        case Kind.UNSHARD:
            yield _of_stage("parameters", part)
        case Kind.REDUCE_GRAD:
            yield _of_stage("reduced gradients", part)


def _token(what: str, part: Action, step: int = 0) -> Token:
    return (str(what), part.stage + step, part.micro_batch, part.copy)


def _of_stage(what: str, part: Action) -> Token:
    return (what, part.stage, None, part.copy)
