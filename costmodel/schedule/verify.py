"""A proof that streams of actions can be executed, and that they do the whole step.

    complete    every pass of every stage and micro-batch once, on the stage's rank
    no leaks    whatever an action makes (saved activations, a message, unsharded
                parameters) another one uses up
    no deadlock the streams run to their ends when carried out
    in order    messages between two ranks are received in the order they are sent

The last three are one execution of a Petri net, `costmodel.schedule.verify`.

Streams drawn side by side, for people and for error messages.

Streams carried out as a Petri net, without times.

An action *uses* tokens and *makes* tokens (saved activations, a message, a gradient)
and can be carried out when all that it uses is there. Sends do not wait for their
receivers, and messages between two ranks arrive in the order they are sent.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NoReturn

from costmodel.schedule.action import Action, Kind, Stream
from costmodel.schedule.communication import RECEIVED, crosses, passes
from profiles.errors import InvalidSpec

AROUND = 6  # rows shown before and after a marked place


def grid(streams: Sequence[Stream], mark: tuple[int, int] | None = None) -> str:
    """One column a rank, one row a position; around *mark* (rank, row), if given.

    >>> from costmodel.schedule.schedules import streams
    >>> print(grid(streams("gpipe", 2, 1, 2), mark=(1, 2)))
         rank 0   rank 1
       0 0F0      1F0
       1 0F1      1F1
       2 0B0      1B0      <-- HERE (rank 1)
       3 0B1      1B1
    """
    first, end = 0, max(map(len, streams), default=0)
    if mark is not None:
        first, end = max(mark[1] - AROUND, 0), min(mark[1] + AROUND + 1, end)
    texts = [[str(action) for action in stream[first:end]] for stream in streams]
    width = max([8, *(len(text) for column in texts for text in column)])
    lines = [_line("", [f"rank {rank}" for rank in range(len(streams))], width)]
    for number, row in enumerate(zip_longest(*texts, fillvalue=""), start=first):
        line = _line(str(number), row, width)
        if mark is not None and number == mark[1]:
            line = f"{line.ljust(5 + (width + 1) * len(streams))}"
            line += f"<-- HERE (rank {mark[0]})"
        lines.append(line)
    return "\n".join(lines)


def _line(number: str, texts: Sequence[str], width: int) -> str:
    return f"{number:>4} {' '.join(text.ljust(width) for text in texts)}".rstrip()


def refuse(
    streams: Sequence[Stream], why: str, rank: int | None = None, row: int = 0
) -> NoReturn:
    """Raise InvalidSpec: *why*, and the streams around the place."""
    drawn = grid(streams, None if rank is None else (rank, row))
    raise InvalidSpec(
        f"these streams cannot be executed: {why}; each pass must come once, after "
        f"what it needs and with its transfers: change the streams\n{drawn}"
    )


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
