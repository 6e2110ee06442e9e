"""Clusters of unlike islands, for tests."""

from __future__ import annotations

from dataclasses import replace

from costmodel.machine.assembly import machine
from planner.problem.problem import Problem
from profiles.hardware.catalog import cluster
from profiles.hardware.clusters import Cluster
from tests.support.problems import problem
from tests.support.toy import ETHERNET


def joined(*names: str) -> Cluster:
    """A node of each."""
    islands = tuple(replace(cluster(name).island, nodes=1) for name in names)
    return Cluster(name="joined", islands=islands, between=ETHERNET, source="a test")


def asked(where: Cluster, model: str = "gpt-tiny", batch: int = 8) -> Problem:
    """All of *where*, in a precision that all of its devices have."""
    gpus = where.gpus
    assert gpus is not None
    posed = problem(model, gpus, where=machine(where), global_batch=batch)
    return replace(posed, precision="fp16", flash_attention=False)
