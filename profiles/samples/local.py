"""The cluster `local`: the machine that a profile was taken on."""

from __future__ import annotations

from profiles.errors import InvalidQuestion
from profiles.hardware import Cluster
from profiles.samples.table import Samples

LOCAL = "local"


def local_cluster(samples: Samples) -> Cluster:
    """The machine that *samples* were taken on, as a cluster called ``local``.

    Raises InvalidQuestion where the samples do not describe their machine.
    """
    if samples.cluster is None:
        raise InvalidQuestion(
            "the profile does not describe the machine it was taken on, so there is "
            "no cluster local; take a new one with `profile --out samples.json`, or "
            "name a cluster"
        )
    return samples.cluster
