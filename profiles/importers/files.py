"""`import_files`: files of other tools, each known by what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from profiles.errors import Contradiction, InvalidFile, InvalidQuestion
from profiles.files import read_text, shown
from profiles.hardware import Cluster
from profiles.importers.nccl_tests import (
    Log,
    is_nccl_tests,
    read_nccl_tests,
    samples_of,
)
from profiles.importers.nccl_topology import is_nccl_topology, read_nccl_topology
from profiles.importers.node import NodeTopology, cluster_from
from profiles.importers.nvidia_smi import is_topology_matrix, read_topology_matrix
from profiles.measure import device_name
from profiles.samples import Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the user adds to the files, or None: the GPU's name, nodes, rates of NICs,
    and the cluster whose links the logs are of, where no file describes it."""

    name: str = "imported"
    gpu: str | None = None
    nodes: int | None = None
    nic_gbit_per_s: float | None = None
    cluster: Cluster | None = None


def import_files(paths: Sequence[Path], known: Known) -> Samples:
    """What *paths* say together: `nvidia-smi topo -m`, NCCL's topology, nccl-tests. The
    samples are those of the logs; the cluster is theirs.

    Raises InvalidFile for a file of none of these, Contradiction for files that do not
    speak of the same nodes, InvalidQuestion where something is missing.
    """
    nodes: list[NodeTopology] = []
    logs: list[Log] = []
    for path in paths:
        text, source = read_text(path, what="file"), shown(path.name)
        if is_nccl_topology(text):
            nodes.append(read_nccl_topology(text, source))
        elif is_nccl_tests(text):
            logs.append(read_nccl_tests(text, source))
        elif is_topology_matrix(text):
            nodes.append(read_topology_matrix(text, source))
        else:
            raise InvalidFile(
                f"{shown(path)} is none of what is read: the output of `nvidia-smi "
                "topo -m`, a topology that NCCL wrote (NCCL_TOPO_DUMP_FILE), a log of "
                "nccl-tests"
            )
    cluster = _cluster(nodes, logs, known)
    devices = {device_name(log.device) for log in logs}
    wrong = devices - {cluster.device.name}
    if wrong:
        raise Contradiction(
            f"the logs are of {', '.join(sorted(wrong))}, and the cluster has "
            f"{cluster.device.name}"
        )
    found = {key: one for log in logs for key, one in samples_of(log, cluster).items()}
    return Samples(
        collectives=found,
        machine={
            "device": cluster.device.name,
            "imported": "; ".join(shown(path.name) for path in paths),
        },
        cluster=cluster,
    )


def _cluster(
    nodes: Sequence[NodeTopology], logs: Sequence[Log], known: Known
) -> Cluster:
    if not nodes:
        if known.cluster is None:
            raise InvalidQuestion(
                "logs of nccl-tests do not say what joins the GPUs: give the output of "
                "`nvidia-smi topo -m` or NCCL's topology too, or the cluster whose "
                "links they measured: --links-of NAME|FILE"
            )
        return known.cluster
    node = reduce(NodeTopology.with_, nodes)
    named = {log.device for log in logs}
    gpu = known.gpu or (device_name(named.pop()) if len(named) == 1 else None)
    return cluster_from(
        node,
        name=known.name,
        gpu=gpu,
        nodes=known.nodes,
        nic_gbit_per_s=known.nic_gbit_per_s,
    )
