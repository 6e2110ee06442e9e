"""Laws of `runtime.pipeline.p2p`: few buffers, and yet no step ends later, or never."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from costmodel.schedule.action import Action, Kind, Stream
from costmodel.schedule.communication import RECEIVED, passes, with_transfers
from costmodel.schedule.schedules import copies_held, streams
from runtime.pipeline.p2p import AHEAD, AWAY
from tests.support.pipelines import Pipeline, pipelines

RECEIVES = (Kind.RECV_F, Kind.RECV_B)
Seconds = Mapping[tuple[Kind, int], float]


class Clocked:
    """Streams carried out as `Links` does; *away* sends a neighbour at once.

    A message travels for *link_s* once it is sent and its receiver has a buffer.
    """

    def __init__(
        self,
        order: Sequence[Stream],
        held_by: Sequence[Sequence[int]],
        seconds: Seconds,
        link_s: float,
        away: float,
    ) -> None:
        self.order, self.held_by, self.seconds = order, held_by, seconds
        self.link_s, self.away = link_s, away
        self.now_s = [0.0] * len(order)
        self.sent_s: dict[Action, float] = {}
        self.posted_s: dict[Action, float] = {}
        self.sends: dict[tuple[int, int], list[Action]] = defaultdict(list)
        self.coming = [[a for a in stream if a.kind in RECEIVES] for stream in order]
        for rank in range(len(order)):
            self._post(rank, AHEAD)

    def run(self) -> float:
        """When the last rank ends; infinite where they wait for each other."""
        at = [0] * len(self.order)
        moved = True
        while moved:
            moved = False
            for rank, stream in enumerate(self.order):
                while at[rank] < len(stream) and self._does(rank, stream[at[rank]]):
                    at[rank] += 1
                    moved = True
        ended = all(here == len(s) for here, s in zip(at, self.order, strict=True))
        return max(self.now_s) if ended else inf

    def _post(self, rank: int, count: int) -> None:
        for action in self.coming[rank][:count]:
            self.posted_s.setdefault(action, self.now_s[rank])

    def _does(self, rank: int, action: Action) -> bool:
        """Carry *action* out, if what it waits for has happened."""
        if action.kind in RECEIVED:
            return self._sends(rank, action)
        if action.kind in RECEIVES:
            self._post(rank, 1 + AHEAD)
            if action not in self.sent_s:
                return False
            self.coming[rank].pop(0)
            self._wait(rank, action)
        for part in passes(action):
            self.now_s[rank] += self.seconds.get((part.kind, part.stage), 0.0)
        return True

    def _sends(self, rank: int, action: Action) -> bool:
        kind, step = RECEIVED[action.kind]
        message = replace(action, kind=kind, stage=action.stage + step)
        before = self.sends[rank, self.held_by[message.copy][message.stage]]
        if len(before) >= self.away:
            oldest = before[-int(self.away)]
            if oldest not in self.posted_s:
                return False
            self._wait(rank, oldest)
        before.append(message)
        self.sent_s[message] = self.now_s[rank]
        return True

    def _wait(self, rank: int, message: Action) -> None:
        began_s = max(self.sent_s[message], self.posted_s[message])
        self.now_s[rank] = max(self.now_s[rank], began_s + self.link_s)


COSTS = st.sampled_from([0.0, 0.25, 1.0, 3.0]) | st.floats(0.0, 4.0)


@given(pipelines().filter(lambda one: one.pp > 1), st.data())
def test_few_sends_at_once_make_no_step_longer(
    one: Pipeline, data: st.DataObject
) -> None:
    held_by = copies_held(*one[:3])
    order = with_transfers(streams(*one), *held_by)
    costs = st.lists(COSTS, min_size=one.stages, max_size=one.stages)
    seconds = {
        (kind, stage): cost
        for kind in (Kind.F, Kind.B, Kind.I, Kind.W)
        for stage, cost in enumerate(data.draw(costs))
    }
    link_s = data.draw(COSTS | st.just(20.0))
    free_s = Clocked(order, held_by, seconds, link_s, inf).run()
    assert free_s < inf
    assert Clocked(order, held_by, seconds, link_s, AWAY).run() == free_s


def test_one_send_at_once_would_make_some_longer() -> None:
    held_by = copies_held("1f1b", 2, 1)
    order = with_transfers(streams("1f1b", 2, 1, 4), *held_by)
    free_s, bound_s = (
        Clocked(order, held_by, {}, 1.0, away).run() for away in (inf, 1)
    )
    assert free_s < bound_s < inf


def test_a_deadlock_is_seen() -> None:
    # Rank 0 waits for 2RECV_F0, which is sent last, with a buffer for 0RECV_B0 alone.
    texts = (
        "2RECV_F0 0RECV_B0 0RECV_B1 0RECV_B2",
        "1SEND_B0 1SEND_B1 1SEND_B2 1SEND_F0",
    )
    order = [tuple(map(Action.parse, text.split())) for text in texts]
    assert Clocked(order, ((0, 1, 0),), {}, 1.0, 2).run() == inf
    assert Clocked(order, ((0, 1, 0),), {}, 1.0, 3).run() < inf
