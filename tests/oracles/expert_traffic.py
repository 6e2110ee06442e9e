"""What a layer of experts sends when the runtime carries it out, by operator and pass.

top_k      the counts of who chose whom, which balance a sequence: summed over the ranks
           that share it (cp; tp with sequence parallelism), forward
dispatch   how many rows each expert gets (unless that is its capacity), then the rows:
           all-to-all over ep; where experts are cut in width both to all who share
           them, over etp; backward, their gradients
combine    the rows, back, of those who share experts summed; backward, their gradients

Rows are as many as a rank's tokens have experts, or as its experts' capacities. What a
rank sends *back* depends on the router, without capacities: the mean is said here, and
summed over ep it is exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.operators.degrees import Degrees, sent_rows
from costmodel.operators.moe import BALANCE_BYTES, COUNT_BYTES
from profiles.hardware.precisions import Precision
from profiles.models.graph import Block, Kind, Operator

Sent = tuple[str, str, int]  # axis, collective, bytes of what a rank holds


def expert_messages(
    direction: str,
    operator: Operator,
    block: Block,
    degrees: Degrees,
    precision: Precision,
) -> Iterator[Sent]:
    """What one rank sends in a pass, "forward" or "backward"."""
    forward = direction == "forward"
    if operator.function == "top-k" and forward:
        size = int(degrees.micro_batch) * block.extents["experts"] * BALANCE_BYTES
        if degrees.cp > 1:
            yield "cp", "all_reduce", size
        if degrees.sequence_parallel:
            yield "tp", "all_reduce", size
    if operator.kind not in (Kind.DISPATCH, Kind.COMBINE):
        return
    counted = forward and operator.kind is Kind.DISPATCH and block.capacity is None
    counts = block.extents["experts"] * COUNT_BYTES
    width = block.extents["hidden"] * precision.activation.bytes
    rows = int(sent_rows(block, degrees) * width)
    if degrees.ep > 1:
        if counted:
            yield "ep", "all_to_all", counts
        yield "ep", "all_to_all", rows
    sharers = int(degrees.etp)
    if sharers > 1:
        if counted:
            yield "etp", "all_gather", sharers * counts
        yield "etp", "all_to_all", sharers * rows
