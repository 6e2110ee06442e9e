"""Small chains, and every schedule of one."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from tests.support.rotor import Chain, Execution, Pass


@st.composite
def chains(draw: st.DrawFn, most: int = 5) -> Chain:
    links = draw(st.integers(1, most))

    def numbers(count: int, least: int = 1) -> tuple[float, ...]:
        some = st.integers(least, 4)
        return tuple(draw(st.lists(some, min_size=count, max_size=count)))

    return Chain(
        forward_s=numbers(links),
        backward_s=numbers(links),
        output_bytes=numbers(links + 1),
        record_bytes=numbers(links),
        forward_transient_bytes=numbers(links, 0),
        backward_transient_bytes=numbers(links, 0),
    )


def schedules(i: int, j: int) -> Iterator[Execution]:
    """Every persistent schedule of links i..j."""
    if i == j:
        yield (Pass.FORWARD_ALL, i), (Pass.BACKWARD, i)
        return
    for rest in schedules(i + 1, j):
        yield (Pass.FORWARD_ALL, i), *rest, (Pass.BACKWARD, i)
    for k in range(i + 1, j + 1):
        sweep = [(Pass.FORWARD_NONE, link) for link in range(i + 1, k)]
        for right in schedules(k, j):
            for left in schedules(i, k - 1):
                yield (Pass.FORWARD_KEEP, i), *sweep, *right, *left


def seconds(chain: Chain, execution: Execution) -> float:
    """Of all passes, copies left out."""
    return sum(
        chain.backward_s[link] if name is Pass.BACKWARD else chain.forward_s[link]
        for name, link in execution
        if name not in (Pass.OFFLOAD, Pass.FETCH)
    )
