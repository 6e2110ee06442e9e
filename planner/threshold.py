"""The least of a sum that falls as a threshold rises, plus a price of the threshold.

    minimise    S(t) + w · t    where S falls with t

as in `stage_partition`: S is the least sum over stages none of which is slower than t,
t the slowest. What S(t) was found with may be faster than t: then it is the answer from
there on up to t. Between two thresholds that are known nothing is less than S of the
upper one + w times the lower one: the interval where that is least is halved, until
none can hold anything better.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf, sqrt

EXACT = 1e-9  # sums in another order
SAME = 1e-8  # thresholds that are closer: more than sums in another order are apart
Reached = tuple[float, float]  # a sum, and the threshold that it needs


def halve(
    sum_at: Callable[[float], Reached],
    *,
    low: float,
    weight: float,
    tolerance: float,
    below: float,
) -> float:
    """The least of S + *weight* · t for t from *low* > 0 on that is less than *below*,
    up to *tolerance*, a fraction; *below* where there is none.

    *sum_at* is asked for S(t), infinite where there is none, and the t that it needs.
    """
    intervals: list[tuple[float, float, float, float]] = []
    best = below

    def ask(start: float, end: float) -> None:
        """What is at *end*, which leaves open what is between *start* and there."""
        nonlocal best
        least, reached = sum_at(end)
        if least < inf:
            best = min(best, least + weight * reached)
            upper = min(reached, end)
            heappush(intervals, (least + weight * start, start, upper, least))

    ask(low, inf)
    while intervals:
        bound, start, end, least = heappop(intervals)
        if bound * (1 + tolerance) >= best * (1 - EXACT):
            break
        if end <= start * (1 + SAME):
            continue
        middle = sqrt(start * end)
        heappush(intervals, (least + weight * middle, middle, end, least))
        ask(start, middle)
    return best
