"""Clusters of unlike islands, for tests."""

from __future__ import annotations

from dataclasses import replace

from costmodel.machine import machine
from planner.problem import Problem
from profiles.catalog import cluster
from profiles.cluster import Cluster
from tests.problems import problem
from tests.toy import ETHERNET


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
