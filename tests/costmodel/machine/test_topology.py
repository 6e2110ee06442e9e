"""What of a domain's ports a transfer gets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.machine.topology import shares
from profiles.errors import InvalidSpec
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Island


def island(ports: int | None) -> Island:
    found = cluster("dgx-a100-80gb").island
    inner, outer = found.levels
    return replace(found, levels=(inner, replace(outer, ports=ports)))


@pytest.mark.parametrize(
    ("ports", "stride", "share"),
    [
        (None, 1, 1.0),  # its own port, and no other
        (None, 64, 1.0),
        (4, 1, 2.0),  # one of four ports: two devices' part of them
        (4, 4, 2.0),
        (4, 8, 1.0),
        (1, 1, 8.0),  # alone
        (1, 2, 4.0),
        (1, 64, 1.0),  # no more than a domain speaks through it
    ],
)
def test_pairs_that_speak_at_once_share_ports(
    ports: int | None, stride: int, share: float
) -> None:
    assert float(shares(np.array(stride), island(ports))) == share


def test_a_level_has_a_port() -> None:
    with pytest.raises(InvalidSpec, match="must be between 1 and"):
        island(0)
