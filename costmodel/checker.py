"""A proof that streams of actions can be executed, and that they do the whole step.

    complete    every pass of every stage and micro-batch once, on the stage's rank
    no leaks    whatever an action makes (saved activations, a message, unsharded
                parameters) another one uses up
    no deadlock the streams run to their ends when carried out
    in order    messages between two ranks are received in the order they are sent

The last three are one execution of a Petri net: an action *uses* tokens and *makes*
tokens, and can be carried out when all that it uses is there. Sends do not wait for
their receivers.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NoReturn

from costmodel.action import Action, Kind, Stream
from costmodel.send_receive import crosses, passes
from profiles.errors import InvalidSpec

Token = tuple[str, int, int | None, int]  # what, stage, micro-batch, copy
_PASSES = (Kind.F, Kind.B, Kind.I, Kind.W)
_SENDS = {Kind.SEND_F: (Kind.RECV_F, 1), Kind.SEND_B: (Kind.RECV_B, -1)}
_SENT = {Kind.RECV_F: (Kind.SEND_F, -1), Kind.RECV_B: (Kind.SEND_B, 1)}
_MARK = "  <-- HERE"
_AROUND = 6  # rows of the grid shown before and after the place


def check(
    streams: Sequence[Stream], *holders: Sequence[int], micro_batches: int
) -> None:
    """Prove that *streams* (with transfers) do a step of *micro_batches*.

    *holders* are the ranks of the virtual stages, once for each copy. Raises
    InvalidSpec, with the streams side by side and the place marked.
    """
    _check_complete(streams, holders, micro_batches)
    _Execution(streams, holders).run()


def _check_complete(
    streams: Sequence[Stream], holders: Sequence[Sequence[int]], micro_batches: int
) -> None:
    seen: Counter[tuple[str, int, int | None]] = Counter()
    copies: dict[int | None, int] = {}
    for rank, row, part in _parts(streams):
        if part.kind not in _PASSES:
            continue
        home = _home(part, holders)
        if home != rank:
            _refuse(streams, f"{part} is held by rank {home}", rank, row)
        if copies.setdefault(part.micro_batch, part.copy) != part.copy:
            _refuse(streams, f"{part} is of another copy than before", rank, row)
        seen[part.kind, part.stage, part.micro_batch] += 1
        if seen[part.kind, part.stage, part.micro_batch] > 1:
            _refuse(streams, f"{part} is there twice", rank, row)
    for stage in range(len(holders[0])):
        for micro_batch in range(micro_batches):
            counts = [seen[kind, stage, micro_batch] for kind in _PASSES]
            if counts not in ([1, 1, 0, 0], [1, 0, 1, 1]):
                found = [k for k, n in zip(_PASSES, counts, strict=True) if n]
                names = " ".join(f"{stage}{kind}{micro_batch}" for kind in found)
                _refuse(
                    streams,
                    f"stage {stage} does {names or 'nothing'} of micro-batch "
                    f"{micro_batch}; it needs F and B, or F, I and W",
                )
    extra = [key for key in seen if (key[2] or 0) >= micro_batches]
    if extra:
        kind, stage, number = extra[0]
        _refuse(streams, f"{stage}{kind}{number} of {micro_batches} micro-batches")


def _home(part: Action, holders: Sequence[Sequence[int]]) -> int | None:
    if part.copy < len(holders) and part.stage < len(holders[part.copy]):
        return holders[part.copy][part.stage]
    return None


def _parts(streams: Sequence[Stream]) -> Iterator[tuple[int, int, Action]]:
    for rank, stream in enumerate(streams):
        for row, action in enumerate(stream):
            for part in passes(action):
                yield rank, row, part


class _Execution:
    """The streams being carried out: what is there, and how far each rank is."""

    def __init__(
        self, streams: Sequence[Stream], holders: Sequence[Sequence[int]]
    ) -> None:
        self.streams, self.holders = streams, holders
        self.at = [0] * len(streams)
        self.there: list[Counter[Token]] = [Counter() for _ in streams]
        self.links: dict[tuple[int, int], deque[Token]] = defaultdict(deque)
        self.left = [Counter[Token]() for _ in streams]  # backwards to reduce
        for rank, _, part in _parts(streams):
            if part.kind in (Kind.B, Kind.W):
                self.left[rank][_of_stage("backward", part)] += 1

    def run(self) -> None:
        while any([self._advance(rank) for rank in range(len(self.streams))]):
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
        source = self.holders[action.copy][action.stage + step]
        queue = self.links[source, rank]
        if not queue:
            return False
        wanted = (str(kind), action.stage + step, action.micro_batch, action.copy)
        if queue[0] != wanted:
            sent, stage, micro_batch, _ = queue[0]
            _refuse(
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
                count = self.left[rank][_of_stage("backward", part)] or 1
                yield from [_of_stage("backward", part)] * count
            case Kind.STEP:
                for token in self.left[rank]:
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
                target = held_by[stage + _SENDS[part.kind][1]]
                self.links[rank, target].append(_token(str(part.kind), part))
            case Kind.D2H:
                there[_token("activations on the host", part)] += 1
            case Kind.H2D:
                there[_token("activations", part)] += 1
            case Kind.UNSHARD:
                there[_of_stage("parameters", part)] += 1
            case Kind.REDUCE_GRAD:
                there[_of_stage("reduced gradients", part)] += 1

    def _refuse_blocked(self) -> NoReturn:
        waits, place = [], (0, 0)
        for rank, stream in enumerate(self.streams):
            if self.at[rank] < len(stream):
                waits.append(f"rank {rank} at {stream[self.at[rank]]}")
                place = (rank, self.at[rank])
        _refuse(self.streams, f"nothing can go on: {', '.join(waits)}", *place)

    def _check_nothing_left(self) -> None:
        for rank, there in enumerate(self.there):
            for (what, stage, micro_batch, _), count in there.items():
                if count:
                    number = "" if micro_batch is None else f", {micro_batch=}"
                    _refuse(
                        self.streams,
                        f"rank {rank} ends with {what} of stage {stage}{number} unused",
                        rank,
                        len(self.streams[rank]) - 1,
                    )
        for (source, target), queue in self.links.items():
            if queue:
                sent, stage, micro_batch, _ = queue[0]
                _refuse(
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


def _refuse(
    streams: Sequence[Stream], why: str, rank: int | None = None, row: int = 0
) -> NoReturn:
    grid = _grid(streams, rank, row)
    raise InvalidSpec(
        f"these streams cannot be executed: {why}; each pass must come once, after "
        f"what it needs and with its transfers: change the streams\n{grid}"
    )


def _grid(streams: Sequence[Stream], rank: int | None, row: int) -> str:
    """The streams side by side around *row*, with *rank*'s action there marked."""
    first, end = max(row - _AROUND, 0), row + _AROUND + 1
    cells = [[str(action) for action in stream[first:end]] for stream in streams]
    width = max([len(cell) for column in cells for cell in column] + [8])
    mark = None if rank is None else (rank, row)
    lines = ["     " + " ".join(f"rank {r}".ljust(width) for r in range(len(cells)))]
    for number in range(first, min(end, max(map(len, streams), default=0))):
        line = [
            (column[number - first] if number - first < len(column) else "").ljust(
                width
            )
            for column in cells
        ]
        marked = _MARK + f" (rank {rank})" if mark == (rank, number) else ""
        lines.append(f"{number:4d} " + " ".join(line).rstrip() + marked)
    return "\n".join(lines)
