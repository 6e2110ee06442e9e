"""Where machines meet, and by which interface they speak."""

from __future__ import annotations

import socket
import sys

import pytest

from profiles.errors import Contradiction, InvalidQuestion
from profiles.system import network
from profiles.system.network import Endpoint, Route, meeting_point, route_to


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_that_was_asked_for_is_taken(host: str) -> None:
    interface = "lo" if sys.platform == "linux" else None
    found = route_to(Endpoint(host=host, port=29400))
    if found is not None and ":" in found.address:
        pytest.skip("localhost is an IPv6 address here")
    assert found == Route(address="127.0.0.1", interface=interface, here=True)


def test_a_name_that_only_loopback_leads_to_is_no_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ``node0 127.0.1.1`` in a hosts file: others do not reach it there."""
    own = [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", 29400))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: own)
    assert route_to(Endpoint(host="node0", port=29400)) is None


def test_a_host_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(InvalidQuestion, match=r"node0:29400.*name or service not"):
        route_to(Endpoint(host="node0", port=29400))


def test_an_address_that_no_interface_has_is_still_a_route() -> None:
    assert network._interface("203.0.113.7") is None


def test_where_machines_meet() -> None:
    assert meeting_point(1, None) is None
    assert meeting_point(2, "node0:29400") == Endpoint(host="node0", port=29400)
    assert str(meeting_point(1, "10.0.0.1:80")) == "10.0.0.1:80"
    with pytest.raises(Contradiction, match="HOST:PORT"):
        meeting_point(2, None)
