"""Streams carried out as a Petri net, without times.

An action *uses* tokens and *makes* tokens (saved activations, a message, a gradient)
and can be carried out when all that it uses is there. Sends do not wait for their
receivers, and messages between two ranks arrive in the order they are sent.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence

from costmodel.action import Action, Kind, Stream
from costmodel.send_receive import RECEIVED, crosses, passes
from costmodel.stream_grid import refuse

Token = tuple[str, int, int | None, int]  # what, stage, micro-batch, copy
_SENT = {received: (sent, -step) for sent, (received, step) in RECEIVED.items()}


class Execution:
    """The streams being carried out: what is there, and how far each rank is."""

    def __init__(
        self, streams: Sequence[Stream], holders: Sequence[Sequence[int]]
    ) -> None:
        self.streams, self.holders = streams, holders
        self.at = [0] * len(streams)
        self.there: list[Counter[Token]] = [Counter() for _ in streams]
        self.links: dict[tuple[int | None, int], deque[Token]] = defaultdict(deque)
        self.backwards = [Counter[Token]() for _ in streams]  # that a stage has
        for rank, stream in enumerate(streams):
            for part in (part for action in stream for part in passes(action)):
                if part.kind in (Kind.B, Kind.W):
                    self.backwards[rank][_of_stage("backward", part)] += 1

    def run(self) -> None:
        """Carry out everything; raise InvalidSpec where that stops, or leaves waste."""
        while any(self._advance(rank) for rank in range(len(self.streams))):
            pass
        for rank, stream in enumerate(self.streams):
            if self.at[rank] < len(stream):
                self._refuse_blocked()
        self._check_nothing_left()

    def _advance(self, rank: int) -> bool:
        before = self.at[rank]
        stream = self.streams[rank]
        while self.at[rank] < len(stream) and self._carry_out(
            rank, stream[self.at[rank]]
        ):
            self.at[rank] += 1
        return self.at[rank] > before

    def _carry_out(self, rank: int, action: Action) -> bool:
        if action.kind in _SENT and not self._message_there(rank, action):
            return False
        used = Counter(t for part in passes(action) for t in self._uses(rank, part))
        if not used <= self.there[rank]:
            return False
        self.there[rank] -= used
        for part in passes(action):
            self._make(rank, part)
        return True

    def _message_there(self, rank: int, action: Action) -> bool:
        """Whether the message that *action* receives has come; it must be the next."""
        kind, step = _SENT[action.kind]
        sender, held_by = action.stage + step, self.holders[action.copy]
        source = held_by[sender] if 0 <= sender < len(held_by) else None
        queue = self.links.get((source, rank))
        if not queue:
            return False
        wanted = (str(kind), sender, action.micro_batch, action.copy)
        if queue[0] != wanted:
            sent, stage, micro_batch, _ = queue[0]
            refuse(
                self.streams,
                f"rank {rank} receives {action}, but what rank {source} sent first "
                f"is {stage}{sent}{micro_batch}",
                rank,
                self.at[rank],
            )
        queue.popleft()
        return True

    def _uses(self, rank: int, part: Action) -> Iterator[Token]:
        stages = len(self.holders[0])
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
            case Kind.D2H:
                yield _token("activations", part)
            case Kind.H2D:
                yield _token("activations on the host", part)
            case Kind.RESHARD:
                yield _of_stage("parameters", part)
            case Kind.REDUCE_GRAD:
                count = self.backwards[rank][_of_stage("backward", part)] or 1
                yield from [_of_stage("backward", part)] * count
            case Kind.STEP:
                for token in self.backwards[rank]:
                    yield ("reduced gradients", *token[1:])

    def _make(self, rank: int, part: Action) -> None:
        there, held_by = self.there[rank], self.holders[part.copy]
        stage, last = part.stage, len(held_by) - 1
        match part.kind:
            case Kind.F:
                there[_token("activations", part)] += 1
                if crosses(held_by, stage):
                    there[_token("output", part)] += 1
                elif stage < last:
                    there[_token("input", part, 1)] += 1
            case Kind.B | Kind.I:
                if crosses(held_by, stage - 1):
                    there[_token("input gradient", part)] += 1
                elif stage > 0:
                    there[_token("gradient", part, -1)] += 1
                whole = part.kind is Kind.B
                done = _of_stage("backward", part)
                there[done if whole else _token("weight work", part)] += 1
            case Kind.W:
                there[_of_stage("backward", part)] += 1
            case Kind.RECV_F:
                there[_token("input", part)] += 1
            case Kind.RECV_B:
                there[_token("gradient", part)] += 1
            case Kind.SEND_F | Kind.SEND_B:
                target = held_by[stage + RECEIVED[part.kind][1]]
                self.links[rank, target].append(_token(str(part.kind), part))
            case Kind.D2H:
                there[_token("activations on the host", part)] += 1
            case Kind.H2D:
                there[_token("activations", part)] += 1
            case Kind.UNSHARD:
                there[_of_stage("parameters", part)] += 1
            case Kind.REDUCE_GRAD:
                there[_of_stage("reduced gradients", part)] += 1

    def _refuse_blocked(self) -> None:
        waits, place = [], (0, 0)
        for rank, stream in enumerate(self.streams):
            if self.at[rank] < len(stream):
                waits.append(f"rank {rank} at {stream[self.at[rank]]}")
                place = (rank, self.at[rank])
        refuse(self.streams, f"nothing can go on: {', '.join(waits)}", *place)

    def _check_nothing_left(self) -> None:
        for rank, there in enumerate(self.there):
            for (what, stage, micro_batch, _), count in there.items():
                if count:
                    number = "" if micro_batch is None else f", {micro_batch=}"
                    refuse(
                        self.streams,
                        f"rank {rank} ends with {what} of stage {stage}{number} unused",
                        rank,
                        len(self.streams[rank]) - 1,
                    )
        for (source, target), queue in self.links.items():
            if queue:
                sent, stage, micro_batch, _ = queue[0]
                refuse(
                    self.streams,
                    f"rank {target} never receives {stage}{sent}{micro_batch} of rank "
                    f"{source}",
                    target,
                    len(self.streams[target]) - 1,
                )


def _token(what: str, part: Action, step: int = 0) -> Token:
    return (what, part.stage + step, part.micro_batch, part.copy)


def _of_stage(what: str, part: Action) -> Token:
    return (what, part.stage, None, part.copy)
