"""`NodeTopology`: what a tool says of one node; `cluster_from`: nodes of that kind.

A GPU's NVLink bandwidth is its links times the rate of one (one way, vendor papers of
each generation):

    P100 20, V100, A100 and H100 25, B200 50 GB/s a link; 4, 6, 12, 18 and 18 of them

GPUs that reach all others over more links together than a GPU has are behind switches:
each pair is counted with all of them. Else a GPU has the sum over its peers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from profiles.errors import Contradiction, InvalidFile, InvalidQuestion
from profiles.hardware import Cluster, Device, Figure, Island, Level, catalog
from profiles.measure import device_name

# GB/s one way of a link, and links of a GPU at most: vendor papers, from memory.
NVLINK: Final[Mapping[str, tuple[int, int]]] = {
    "pascal": (20, 4),
    "volta": (25, 6),
    "ampere": (25, 12),
    "hopper": (25, 18),
    "blackwell": (50, 18),
}
ARCHITECTURES: Final = {
    60: "pascal",
    61: "pascal",
    70: "volta",
    75: "turing",
    80: "ampere",
    86: "ampere",
    89: "ada",
    90: "hopper",
    100: "blackwell",
    103: "blackwell",
}
NODE_US: Final = 5.5  # as the catalogue's NVLink domains
NETWORK_US: Final = 10.0
_ASSUMED: Final = "assumed, as the catalogue's clusters"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTopology:
    """One node as a tool describes it.

    `links` are how many NVLinks join two GPUs, by their places; `switched` says that
    they lead to switches. `nics` are the rates of its NICs in Gbit/s, None where the
    tool does not say. `sm` is the compute capability (80 for 8.0), `device` a GPU's
    name as its driver writes it. `source` is where it is from.
    """

    gpus: int
    source: str
    links: Mapping[tuple[int, int], int] = field(default_factory=dict)
    switched: bool = False
    nics: tuple[float | None, ...] = ()
    sm: int | None = None
    device: str | None = None
    nodes: int | None = None

    def with_(self, other: NodeTopology) -> NodeTopology:
        """What both say together; *other* fills in what this one leaves open.

        Raises Contradiction where they count GPUs differently.
        """
        if self.gpus != other.gpus:
            raise Contradiction(
                f"{self.source} has {self.gpus} GPUs a node and {other.source} "
                f"{other.gpus}; give files of the same kind of node"
            )
        known = any(rate is not None for rate in self.nics)
        return NodeTopology(
            gpus=self.gpus,
            source=f"{self.source}; {other.source}",
            links=self.links or other.links,
            switched=self.switched or other.switched,
            nics=self.nics if known or not other.nics else other.nics,
            sm=self.sm or other.sm,
            device=self.device or other.device,
            nodes=self.nodes or other.nodes,
        )


def cluster_from(
    node: NodeTopology,
    *,
    name: str,
    gpu: str | None = None,
    nodes: int | None = None,
    nic_gbit_per_s: float | None = None,
) -> Cluster:
    """As many *nodes* as asked (None: any number) like *node*, of the GPU *gpu*.

    Raises InvalidQuestion where neither the files nor the options say which GPU it is
    or how fast its NICs are, UnknownName for a GPU that the catalogue lacks.
    """
    device = _device(node, gpu)
    island = Island(
        device=device,
        devices_per_node=node.gpus,
        nodes=nodes or node.nodes,
        levels=(*_inside(node, device), _network(node, nic_gbit_per_s)),
    )
    return Cluster(name=name, islands=(island,), source=f"imported: {node.source}")


def _device(node: NodeTopology, gpu: str | None) -> Device:
    if gpu is not None:
        return catalog.device(gpu)
    if node.device is not None:
        return catalog.device(device_name(node.device))
    fitting = [
        one
        for one in catalog.device_names()
        if node.sm is not None
        and catalog.device(one).architecture == ARCHITECTURES.get(node.sm)
    ]
    if len(fitting) == 1:
        return catalog.device(fitting[0])
    which = ", ".join(fitting) if fitting else "a name of the catalogue"
    raise InvalidQuestion(
        f"{node.source} does not say which GPU a node has; name it with --gpu: {which}"
    )


def _inside(node: NodeTopology, device: Device) -> tuple[Level, ...]:
    """The links inside a node: NVLink where there is any, and PCIe around what it does
    not join."""
    whole = Level(
        name="node",
        kind="pcie",
        devices=node.gpus,
        bandwidth=device.host_link,
        latency=_latency(NETWORK_US),
    )
    if not node.links:
        return (whole,) if node.gpus > 1 else ()
    if device.architecture not in NVLINK:
        raise Contradiction(
            f"{node.source} has NVLinks, and {device.name} has none; name another --gpu"
        )
    each, most = NVLINK[device.architecture]
    count, switched = _links_of_a_gpu(node, most)
    size = _joined(node)
    nvlink = Level(
        name="node" if size == node.gpus else "nvlink",
        kind="nvswitch" if switched else "nvlink",
        devices=size,
        bandwidth=Figure(
            value=count * each,
            unit="GB/s",
            source=f"{count} NVLinks of {each} GB/s one way; {node.source}",
        ),
        latency=_latency(NODE_US),
    )
    return (nvlink,) if size == node.gpus else (nvlink, whole)


def _links_of_a_gpu(node: NodeTopology, most: int) -> tuple[int, bool]:
    """How many NVLinks a GPU has, and whether they lead to switches.

    Raises InvalidFile where GPUs have unlike numbers: a level has one rate.
    """
    totals = [
        sum(count for pair, count in node.links.items() if place in pair)
        for place in range(node.gpus)
    ]
    pairs = set(node.links.values())
    if node.switched or (max(totals) > most and len(pairs) == 1):
        return max(pairs), True
    several = sorted(set(totals))
    if len(several) > 1:
        few = totals.index(several[0])
        raise InvalidFile(
            f"{node.source}: GPUs have {' and '.join(map(str, several))} NVLinks (GPU "
            f"{few} has {several[0]}); in a cluster file the devices of a level are "
            "alike: is a link missing? See `nvidia-smi nvlink --status`"
        )
    return totals[0], False


def _joined(node: NodeTopology) -> int:
    """How many GPUs NVLink joins, the same number in each group.

    Raises InvalidFile for unlike groups.
    """
    import networkx as nx

    graph = nx.Graph(list(node.links))
    graph.add_nodes_from(range(node.gpus))
    sizes = sorted({len(group) for group in nx.connected_components(graph)})
    if len(sizes) > 1:
        raise InvalidFile(
            f"{node.source}: NVLink joins groups of {' and '.join(map(str, sizes))} "
            "GPUs; in a cluster file they are alike: is a link missing?"
        )
    return sizes[0]


def _network(node: NodeTopology, nic_gbit_per_s: float | None) -> Level:
    rates = [rate or nic_gbit_per_s for rate in node.nics] or [nic_gbit_per_s]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        raise InvalidQuestion(
            f"{node.source} does not say how fast its {len(rates)} NICs are; give "
            "--nic-gbit-per-s, or NCCL's topology file too (NCCL_TOPO_DUMP_FILE)"
        )
    kinds = Counter(known).items()
    together = " and ".join(f"{count} NICs of {rate:g}" for rate, count in kinds)
    return Level(
        name="network",
        kind="infiniband",
        devices=None,
        ports=len(known) if len(known) < node.gpus else None,
        bandwidth=Figure(
            value=sum(known) / node.gpus,
            unit="Gbit/s",
            source=f"{together} Gbit/s over {node.gpus} GPUs; {node.source}",
        ),
        latency=_latency(NETWORK_US),
    )


def _latency(us: float) -> Figure:
    return Figure(value=us, unit="us", source=_ASSUMED)
