"""rotor: Revolve, all schedules of small chains, and the memory that it says."""

from __future__ import annotations

from math import comb, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout.retention import KEEP_ALL
from costmodel.simulation.remat_options import Option
from profiles.errors import InvalidSpec
from tests.support.chains import chains, schedules, seconds
from tests.support.rotor import Chain, Pass, Rotor, chain_of_layers, peak_bytes, rotor

SIZES = st.integers(1, 4)


def revolve(links: int, checkpoints: int) -> int:
    """Griewank and Walther: r·l − C(c + r, r − 1), r repetitions at most."""
    again = 1
    while comb(checkpoints + again, checkpoints) < links:
        again += 1
    return again * links - comb(checkpoints + again, again - 1)


@pytest.mark.parametrize(
    ("links", "checkpoints", "steps"),
    [(10, 2, 20), (10, 3, 15), (20, 3, 45), (50, 4, 144), (100, 5, 316)],
)
def test_without_records_it_is_revolve(
    links: int, checkpoints: int, steps: int
) -> None:
    """A link's own forward is its record's; two slots are at work in each pass."""
    chain = Chain.alike(links, backward_s=0.0)
    slots = checkpoints + 2
    found = rotor(chain, slots, slots=slots, records=False)
    assert found.seconds - links == steps == revolve(links, checkpoints)


@pytest.mark.row(
    "H3",
    "chain program, of all schedules of short chains",
    expected="the best",
    evidence="computed",
)
@given(chains(), st.integers(1, 30))
def test_it_is_the_best_of_all_schedules(chain: Chain, memory: int) -> None:
    ways = schedules(0, len(chain) - 1)
    fitting = [seconds(chain, w) for w in ways if peak_bytes(chain, w) <= memory]
    assert rotor(chain, memory, slots=memory).seconds == min(fitting, default=inf)


@given(chains(most=8), st.integers(1, 40), st.integers(3, 60))
def test_what_it_finds_takes_what_it_says(
    chain: Chain, memory: int, slots: int
) -> None:
    found = rotor(chain, memory, slots=slots)
    if found.seconds == inf:
        assert found.passes == ()
        return
    assert seconds(chain, found.passes) == pytest.approx(found.seconds)
    assert peak_bytes(chain, found.passes) <= memory * (1 + 1e-9)


@given(chains(most=8))
def test_more_memory_never_takes_longer(chain: Chain) -> None:
    table = Rotor(chain, 60, slots=60)
    curve = [table.seconds(slots) for slots in range(61)]
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] >= chain.least_s


def test_it_dominates_equal_segments() -> None:
    """checkpoint_sequential(k): as many bytes buy at most as much time."""
    chain = Chain.alike(24, record_bytes=5)
    for segments in (2, 3, 4, 6, 8, 12):
        size = 24 // segments
        passes: list[tuple[Pass, int]] = []
        for start in range(0, 24 - size, size):
            passes.append((Pass.FORWARD_KEEP, start))
            inner = range(start + 1, start + size)
            passes += [(Pass.FORWARD_NONE, link) for link in inner]
        for start in range(24 - size, -1, -size):
            passes += [(Pass.FORWARD_ALL, link) for link in range(start, start + size)]
            passes += [(Pass.BACKWARD, link) for link in range(start, start + size)][
                ::-1
            ]
        memory = peak_bytes(chain, tuple(passes))
        found = rotor(chain, memory, slots=int(memory))
        assert found.seconds <= seconds(chain, tuple(passes))


def test_layers_are_links() -> None:
    kept = Option(
        retention=KEEP_ALL, recompute_s=0.0, saved_bytes=7.0, working_bytes=2.0
    )
    chain = chain_of_layers([(kept, 1.0, 2.0)] * 6, entry_bytes=1.0)
    assert len(chain) == 6
    everything = peak_bytes(chain, next(schedules(0, 5)))
    assert rotor(chain, everything, slots=int(everything)).seconds == chain.least_s
    tight = rotor(chain, 0.5 * everything)
    assert chain.least_s < tight.seconds < 2 * chain.least_s


def test_a_chain_is_whole() -> None:
    with pytest.raises(InvalidSpec, match="at least 1"):
        Chain.alike(0)
    with pytest.raises(ValueError, match="B0"):
        peak_bytes(Chain.alike(1), ((Pass.BACKWARD, 0),))
