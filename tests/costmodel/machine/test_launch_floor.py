"""The softer maximum of device and host, where ranks wait for each other and not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.machine.framework import ADDED, ASSUMED, LaunchFloor

seconds = st.floats(1e-6, 10.0)
shares = st.floats(0.0, 1.0)
exponents = st.floats(1.0, 8.0)


@st.composite
def floors(draw: st.DrawFn) -> LaunchFloor:
    alone = draw(exponents)
    return LaunchFloor(alone=alone, together=draw(st.floats(1.0, alone)))


def passed(floor: LaunchFloor, device: float, host: float, share: float) -> float:
    there = floor.seconds(*map(np.asarray, (device, host, share * host)))
    return float(there)


@given(floors(), seconds, seconds, shares)
def test_it_is_no_less_than_either_and_no_more_than_both(
    floor: LaunchFloor, device: float, host: float, share: float
) -> None:
    found = passed(floor, device, host, share)
    assert max(device, host) <= found * (1 + 1e-12)
    assert found <= (device + host) * (1 + 1e-12)


@given(floors(), seconds, seconds, shares, st.floats(1.0, 3.0))
def test_more_of_either_takes_no_less(
    floor: LaunchFloor, device: float, host: float, share: float, more: float
) -> None:
    found = passed(floor, device, host, share) * (1 - 1e-12)
    assert found <= passed(floor, device * more, host, share)
    assert found <= passed(floor, device, host * more, share)


@given(floors(), seconds, seconds, shares, shares)
def test_who_waits_for_others_takes_no_less(
    floor: LaunchFloor, device: float, host: float, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    found = passed(floor, device, host, less) * (1 - 1e-12)
    assert found <= passed(floor, device, host, more)


@given(seconds, seconds, shares)
def test_a_host_that_waits_for_every_kernel_adds_its_own(
    device: float, host: float, share: float
) -> None:
    assert passed(ADDED, device, host, share) == pytest.approx(device + host)


def test_without_a_host_the_device_is_all() -> None:
    device = np.array([0.0, 1.0, 2.0])
    nothing = np.zeros(3)
    assert ASSUMED.seconds(device, nothing, nothing).tolist() == device.tolist()
