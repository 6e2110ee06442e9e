"""How the machines of a job find each other: where they meet, and by which interface.

All are told one endpoint, HOST:PORT. The address by which a machine reaches it is the
one by which the others reach that machine, so nobody has to name an interface.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from profiles.errors import Contradiction, InvalidQuestion

_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR of netdevice(7)
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where machines meet."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """This machine's own *address* on the way to an endpoint, and whose it is.

    `here`: the endpoint is on this machine. `interface` is None where it is not known.
    """

    address: str
    interface: str | None
    here: bool


def meeting_point(nnodes: int, given: str | None) -> Endpoint | None:
    """Where *nnodes* machines meet; None where there is just one, and no endpoint.

    Raises Contradiction for several machines without an endpoint, or a wrong one.
    """
    if nnodes == 1 and given is None:
        return None
    host, _, port = (given or "").rpartition(":")
    if nnodes < 1 or not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise Contradiction(
            f"--nnodes {nnodes} with --rdzv-endpoint {given or '(none)'}: several "
            "machines meet at HOST:PORT of one of them, as in node0:29400"
        )
    return Endpoint(host=host, port=int(port))


def route_to(endpoint: Endpoint) -> Route | None:
    """How this machine speaks with those that meet at *endpoint*.

    None where only loopback leads to a host with a name, as on a machine whose own name
    stands in its hosts file: others do not reach it there. Nothing is sent.
    Raises InvalidQuestion for a host that is not known or to which no route leads.
    """
    try:
        family, _, _, _, (host, *rest) = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, *rest))
            address = str(probe.getsockname()[0])
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InvalidQuestion(
            f"--rdzv-endpoint {endpoint}: this machine finds no way there ({why}); "
            "give a name or address that every machine of the job reaches"
        ) from error
    if _is_loopback(address) and not _is_loopback(endpoint.host):
        return None
    here = address == host
    return Route(address=address, interface=_interface(address), here=here)


def interface(endpoint: Endpoint | None) -> str | None:
    """The one over which gloo reaches the others, which asks for the machine's name
    where it is not told; None where it is not known. Without endpoint, loopback's.
    """
    if endpoint is None:
        return "lo" if sys.platform == "linux" else None
    route = route_to(endpoint)
    return None if route is None else route.interface


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _interface(address: str) -> str | None:
    """The interface that has *address* (IPv4, Linux); None where none is found."""
    if sys.platform != "linux":
        return None
    from fcntl import ioctl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                asked = struct.pack(f"{_NAME_BYTES}s", name.encode())
                found = ioctl(asker.fileno(), _ADDRESS_OF_INTERFACE, asked)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None
