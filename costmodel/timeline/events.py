"""Simulated time: a clock, resources that serve one thing at a time, and what several
of them share.

It knows nothing of training. After SimPy's core: the whole state is one heap of things
to do, with ties broken by order of arrival, so that runs repeat exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count

from profiles.errors import InvalidSpec

Act = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a resource did, and when."""

    resource: str
    label: str
    start_s: float
    end_s: float


class Clock:
    """Things to do, each at its time.

    >>> clock = Clock()
    >>> clock.after(2.0, lambda: print("two", clock.now_s))
    >>> clock.after(1.0, lambda: print("one", clock.now_s))
    >>> clock.run()
    one 1.0
    two 2.0
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Act]] = []
        self._arrival = count()

    def after(self, delay_s: float, act: Act) -> None:
        """Do *act* in *delay_s* seconds. Raises InvalidSpec for the past."""
        if not delay_s >= 0:
            raise InvalidSpec(
                f"a delay of {delay_s} s at {self.now_s} s; time only runs forward, "
                "a delay must be 0 or more"
            )
        heappush(self._queue, (self.now_s + delay_s, next(self._arrival), act))

    def run(self) -> None:
        """Do everything, and what follows from it, until nothing is left."""
        while self._queue:
            self.now_s, _, act = heappop(self._queue)
            act()


class Shared:
    """What several things use at once, each at the `speed` of so many.

    >>> clock = Clock()
    >>> core = Shared(clock, lambda at_work: 1 / at_work)
    >>> core.after(1.0, lambda: print("one", clock.now_s))
    >>> core.after(2.0, lambda: print("two", clock.now_s))
    >>> clock.run()
    one 2.0
    two 3.0
    """

    def __init__(self, clock: Clock, speed: Callable[[int], float]) -> None:
        self._clock, self._speed = clock, speed
        self._left: dict[int, tuple[float, Act]] = {}
        self._since_s = 0.0
        self._plan = 0  # of the last one alone something comes
        self._arrival = count()

    def after(self, duration_s: float, act: Act) -> None:
        """Do *act* after *duration_s* seconds at speed 1."""
        self._pass()
        self._left[next(self._arrival)] = (duration_s, act)
        self._foresee()

    def _pass(self) -> None:
        passed_s = self._clock.now_s - self._since_s
        self._since_s = self._clock.now_s
        if self._left:
            done_s = passed_s * self._speed(len(self._left))
            self._left = {
                number: (left_s - done_s, act)
                for number, (left_s, act) in self._left.items()
            }

    def _foresee(self) -> None:
        self._plan += 1
        if self._left:
            least_s = min(left_s for left_s, _ in self._left.values())
            delay_s = max(least_s, 0.0) / self._speed(len(self._left))
            self._clock.after(delay_s, partial(self._end, self._plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._pass()
        first = min(self._left, key=lambda number: self._left[number][0])
        _, act = self._left.pop(first)
        self._foresee()
        act()


class Resource:
    """Serves one request at a time, in the order in which they were made.

    >>> clock = Clock()
    >>> link = Resource(clock, "link")
    >>> link.serve("a", 1.5)
    >>> link.serve("b", 1.0)
    >>> clock.run()
    >>> [(span.label, span.start_s, span.end_s) for span in link.spans]
    [('a', 0.0, 1.5), ('b', 1.5, 2.5)]
    """

    def __init__(self, clock: Clock, name: str) -> None:
        self.name = name
        self.spans: list[Span] = []
        self._clock = clock
        self._busy = False
        self._waiting: deque[tuple[str, float, Act | None, Clock | Shared]] = deque()

    def serve(
        self,
        label: str,
        duration_s: float,
        done: Act | None = None,
        *,
        using: Shared | None = None,
    ) -> None:
        """Ask for *duration_s* seconds, of what it is *using* with others if so; call
        *done* when they are over."""
        self._waiting.append((label, duration_s, done, using or self._clock))
        self._start_next()

    def _start_next(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        label, duration_s, done, using = self._waiting.popleft()
        start_s = self._clock.now_s

        def finish() -> None:
            span = Span(
                resource=self.name,
                label=label,
                start_s=start_s,
                end_s=self._clock.now_s,
            )
            self.spans.append(span)
            self._busy = False
            self._start_next()
            if done is not None:
                done()

        using.after(duration_s, finish)
