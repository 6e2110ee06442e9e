"""POFO: the best of all schedules of small chains, and never behind its parts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chains import chains, schedules, seconds
from tests.support.pofo import Offloaded, pofo
from tests.support.rotor import Chain, Execution, Pass, peak_bytes, rotor

RATES = st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0])


def spines(link: int, last: int) -> Iterator[Execution]:
    """Every schedule from *link* on whose holders stay or are away."""
    yield from schedules(link, last)
    ways = [(end, record) for end in range(link + 1, last + 1) for record in (0, 1)]
    for (end, record), away in product(ways, (False, True)):
        if (record and end > link + 1) or (away and not link):
            continue
        sweep = tuple((Pass.FORWARD_NONE, one) for one in range(link + 1, end))
        first = Pass.FORWARD_ALL if record else Pass.FORWARD_KEEP
        back = [((Pass.BACKWARD, link),)] if record else list(schedules(link, end - 1))
        out = ((Pass.OFFLOAD, link),) if away else ()
        home = ((Pass.FETCH, link),) if away else ()
        for rest in spines(end, last):
            for again in back:
                yield ((first, link), *sweep, *out, *rest, *home, *again)


def away_bytes(chain: Chain, execution: Execution) -> float:
    total, recorded = 0.0, set[int]()
    for name, link in execution:
        if name is Pass.FORWARD_ALL:
            recorded.add(link)
        if name is Pass.OFFLOAD:
            before = link - 1 in recorded
            total += (
                chain.record_bytes[link - 1] if before else chain.output_bytes[link]
            )
    return total


def with_waits(chain: Chain, execution: Execution, rate: float) -> float:
    moved, passes_s = away_bytes(chain, execution), seconds(chain, execution)
    if not moved:
        return passes_s
    if not rate:
        return inf
    forward_s = sum(chain.forward_s)
    copy_s = moved / rate
    return (
        passes_s
        + max(copy_s - forward_s, 0.0)
        + max(copy_s - (passes_s - forward_s), 0.0)
    )


@pytest.mark.row(
    "H6",
    "joint program, of all schedules of short chains",
    expected="the best",
    evidence="computed",
)
@settings(deadline=None)
@given(chains(most=4), st.integers(1, 30), RATES)
def test_it_is_the_best_of_all_schedules(
    chain: Chain, memory: int, rate: float
) -> None:
    ways = spines(0, len(chain) - 1)
    fits = [one for one in ways if peak_bytes(chain, one) <= memory]
    best = min((with_waits(chain, one, rate) for one in fits), default=inf)
    found = exactly(chain, memory, rate)
    assert found.seconds == pytest.approx(best)


def exactly(chain: Chain, memory: int, rate: float) -> Offloaded:
    """With a slot for each byte."""
    pairs = zip(chain.output_bytes[1:-1], chain.record_bytes[:-1], strict=True)
    away = max(int(sum(map(max, pairs))), 1)
    return pofo(chain, memory, rate, slots=memory, away_slots=away)


@given(chains(most=8), st.integers(1, 40), RATES, st.integers(3, 40))
def test_what_it_finds_takes_what_it_says(
    chain: Chain, memory: int, rate: float, slots: int
) -> None:
    found = pofo(chain, memory, rate, slots=slots, away_slots=20)
    if found.seconds == inf:
        assert found.passes == ()
        return
    assert found.away_bytes == away_bytes(chain, found.passes)
    assert with_waits(chain, found.passes, rate) == pytest.approx(found.seconds)
    assert peak_bytes(chain, found.passes) <= memory * (1 + 1e-9)


@settings(deadline=None)
@given(chains(most=8), st.integers(1, 40), RATES)
def test_it_is_never_behind_rotor_or_pure_offloading(
    chain: Chain, memory: int, rate: float
) -> None:
    found = exactly(chain, memory, rate).seconds
    assert found <= rotor(chain, memory, slots=memory).seconds
    last = len(chain) - 1
    for away in product((False, True), repeat=last):
        pure = everything_recorded(last, away)
        if peak_bytes(chain, pure) <= memory:
            assert found <= with_waits(chain, pure, rate) * (1 + 1e-12)


def everything_recorded(last: int, away: tuple[bool, ...]) -> Execution:
    """Nothing is made again; of each link but the last the record is away or stays."""
    passes: list[tuple[Pass, int]] = [(Pass.FORWARD_ALL, 0)]
    for link in range(1, last + 1):
        passes.append((Pass.FORWARD_ALL, link))
        passes += [(Pass.OFFLOAD, link)] * away[link - 1]
    for link in range(last, -1, -1):
        if link and away[link - 1]:
            passes.append((Pass.FETCH, link))
        passes.append((Pass.BACKWARD, link))
    return tuple(passes)


@given(chains(most=6), st.integers(1, 20))
def test_a_faster_link_or_more_memory_never_takes_longer(
    chain: Chain, memory: int
) -> None:
    rates = (0.0, 0.3, 1.0, 5.0)
    by_rate = [exactly(chain, memory, rate).seconds for rate in rates]
    assert by_rate == sorted(by_rate, reverse=True)
    more = exactly(chain, memory + 1, 0.3).seconds
    assert more <= by_rate[1] * (1 + 1e-12)


def test_both_together_take_less_than_either() -> None:
    """A slow link hides some copies: fewer links are made again than without it, and no
    pass waits as it would for all of them."""
    chain = Chain.alike(12, record_bytes=4.0)
    memory, rate = 16, 0.6
    together = exactly(chain, memory, rate)
    again = rotor(chain, memory, slots=memory).seconds
    away = everything_recorded(11, (True,) * 11)
    assert peak_bytes(chain, away) <= memory
    assert chain.least_s < together.seconds < again
    assert together.seconds < with_waits(chain, away, rate)


def test_what_is_not_there_is_not_moved() -> None:
    with pytest.raises(ValueError, match="D2H1"):
        peak_bytes(Chain.alike(2), ((Pass.OFFLOAD, 1),))
    with pytest.raises(ValueError, match="H2D1"):
        peak_bytes(Chain.alike(2), ((Pass.FETCH, 1),))
