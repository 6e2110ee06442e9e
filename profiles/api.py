"""The front door: facts by name or from a file."""

from __future__ import annotations

from pathlib import Path

from profiles.hardware import Cluster, cluster
from profiles.models import Model, model

__all__ = ["load_cluster", "load_model"]


def load_model(name_or_path: str | Path) -> Model:
    """A model by catalogue name (in any case), model file or Hugging Face config.

    `seq_len` is in tokens and `global_batch` in sequences; `spec` has the sizes.

    Raises UnknownName with the nearest names, InvalidFile or InvalidSpec for a damaged
    file, Unsupported for a model type that is not known.
    """
    return model(str(name_or_path))


def load_cluster(name_or_path: str | Path) -> Cluster:
    """A cluster by catalogue name (in any case) or from a cluster file.

    Its figures keep the unit of their source; `.si` of each is in bytes, seconds, FLOP.

    Raises UnknownName with the nearest names, InvalidFile or InvalidSpec for a damaged
    file, Unsupported for `local`, which is known by the samples of a profile alone.
    """
    return cluster(str(name_or_path))
