"""The front door: facts by name or from a file."""

from __future__ import annotations

from pathlib import Path

from profiles.hardware import Cluster, cluster
from profiles.models import Model, is_reference, model, module_model, remember

__all__ = ["load_cluster", "load_model"]


def load_model(name_or_path: str | Path, *, seq_len: int | None = None) -> Model:
    """A model by catalogue name (in any case), model file or Hugging Face config; or a
    module of your own by `package.module:factory`, which is imported and traced, with
    samples of *seq_len* tokens where its inputs do not say.

    `seq_len` is in tokens and `global_batch` in sequences; `spec` has the sizes.

    Raises UnknownName with the nearest names, InvalidFile or InvalidSpec for a damaged
    file, Unsupported for a model type that is not known and a module that does not
    trace.
    """
    name = str(name_or_path)
    if not is_reference(name):
        return model(name)
    from profiles.trace import module_spec  # loads torch

    return module_model(remember(*module_spec(name, seq_len=seq_len)))


def load_cluster(name_or_path: str | Path) -> Cluster:
    """A cluster by catalogue name (in any case) or from a cluster file.

    Its figures keep the unit of their source; `.si` of each is in bytes, seconds, FLOP.

    Raises UnknownName with the nearest names, InvalidFile or InvalidSpec for a damaged
    file, Unsupported for `local`, which is known by the samples of a profile alone.
    """
    return cluster(str(name_or_path))
