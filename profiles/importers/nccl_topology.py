"""NCCL's topology as XML: what `NCCL_TOPO_DUMP_FILE` writes.

`gpu` elements have their compute capability (`sm`) and an `nvlink` for each peer, by
the bus id of the peer (or of a switch, whose class is 0x068000); `net` elements their
`speed` in Mbit/s. A file with more than one `host_hash` speaks of several nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from profiles.errors import InvalidFile
from profiles.importers.node import NodeTopology

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SWITCH: Final = "0x068000"
MOST_GPUS: Final = 1024


def is_nccl_topology(text: str) -> bool:
    """Whether *text* looks like a topology of NCCL."""
    return "<system" in text[:4096]


def read_nccl_topology(text: str, source: str) -> NodeTopology:
    """The node of a topology file.

    Raises InvalidFile, naming *source*, for what is no XML, has no GPUs, or has a link
    to a GPU that is not there.
    """
    root = _parsed(text, source)
    hosts = {cpu.get("host_hash") for cpu in root.iter("cpu")}
    if len(hosts) > 1:
        raise InvalidFile(
            f"{source} describes {len(hosts)} hosts; dump the topology of one node"
        )
    places: dict[str, tuple[int, Element]] = {}
    for pci in root.iter("pci"):
        gpu = pci.find("gpu")
        if gpu is not None:
            places[str(pci.get("busid")).lower()] = (len(places), gpu)
    if not 0 < len(places) <= MOST_GPUS:
        raise InvalidFile(f"{source} has {len(places)} GPUs; 1 to {MOST_GPUS} are read")
    links, switched = _links(places, source)
    sms = {_number(gpu, "sm", source) for _, gpu in places.values()}
    if len(sms) > 1:
        raise InvalidFile(
            f"{source} has GPUs of {len(sms)} kinds (sm {sorted(sms)}); nodes of "
            "unlike GPUs are islands of their own in a cluster file"
        )
    return NodeTopology(
        gpus=len(places),
        source=source,
        links=links,
        switched=switched,
        nics=tuple(_nics(root, source)),
        sm=sms.pop(),
    )


def _parsed(text: str, source: str) -> Element:
    from xml.etree.ElementTree import ParseError, fromstring

    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InvalidFile(f"{source} declares entities, which NCCL's files never do")
    try:
        return fromstring(text)
    except (ParseError, ValueError) as error:
        raise InvalidFile(f"{source} is not whole XML: {error}") from error


def _links(
    places: Mapping[str, tuple[int, Element]], source: str
) -> tuple[dict[tuple[int, int], int], bool]:
    """NVLinks by pairs of GPUs; all pairs have a GPU's own where switches join them."""
    links: dict[tuple[int, int], int] = {}
    to_switches: dict[int, int] = {}
    for place, gpu in places.values():
        for link in gpu.iter("nvlink"):
            count = _number(link, "count", source)
            target = str(link.get("target")).lower()
            if str(link.get("tclass")).lower() == SWITCH:
                to_switches[place] = to_switches.get(place, 0) + count
                continue
            if target not in places:
                raise InvalidFile(
                    f"{source}: an NVLink of GPU {place} leads to {target}, which no "
                    "GPU of the file is: is a GPU missing?"
                )
            other = places[target][0]
            links[min(place, other), max(place, other)] = count
    if to_switches:
        counts = {to_switches.get(place, 0) for place in range(len(places))}
        if len(counts) > 1:
            raise InvalidFile(
                f"{source}: GPUs have {' and '.join(map(str, sorted(counts)))} NVLinks "
                "to switches: is a link missing?"
            )
        every = [(one, two) for two in range(len(places)) for one in range(two)]
        links = dict.fromkeys(every, counts.pop())
    return links, bool(to_switches)


def _nics(root: Element, source: str) -> list[float]:
    """Rates of the NICs in Gbit/s; ports of one card that share its name count once."""
    cards: dict[str, float] = {}
    for net in root.iter("net"):
        name = str(net.get("name"))
        cards[name] = max(_number(net, "speed", source) / 1e3, cards.get(name, 0.0))
    return list(cards.values())


def _number(element: Element, name: str, source: str) -> int:
    value = element.get(name, "")
    if not (value.isascii() and value.isdigit() and 0 < int(value[:12]) < 10**9):
        raise InvalidFile(
            f"{source}: {name}={value!r} of a {element.tag} is not a whole number "
            "above 0"
        )
    return int(value)
