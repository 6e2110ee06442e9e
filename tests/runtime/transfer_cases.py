"""Two ranks that send to each other at once, more than sockets hold."""

from __future__ import annotations

import torch
import torch.distributed as dist

from costmodel.schedule.action import Action
from runtime.pipeline.p2p import Arrival, Links

NUMBERS, SIZE = 4, 1 << 20
EXPECTED = [float(number) for number in range(NUMBERS)]


def both_ways(rank: int) -> list[float]:
    """Stages 0 and 1 on ranks 0 and 1; the first value of each tensor received."""
    group = dist.group.WORLD
    assert group is not None
    links = Links(group, (0, 1))
    receives = ("0RECV_B", "1RECV_F")[rank]
    sends = ("0SEND_F", "1SEND_B")[rank]
    expected = [
        Arrival(
            action=Action.parse(f"{receives}{number}"),
            shape=(SIZE,),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        for number in range(NUMBERS)
    ]
    found: list[float] = []
    for _ in range(2):
        links.expect(expected)
        found = []
        for number, arrival in enumerate(expected):
            # The links alone keep this tensor alive.
            links.send(
                Action.parse(f"{sends}{number}"), torch.full((SIZE,), float(number))
            )
            received = links.receive(arrival.action)
            assert received.eq(received[0]).all()
            found.append(float(received[0]))
        links.finish()
    return found
