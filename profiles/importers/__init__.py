"""Clusters and samples from what other tools print: nvidia-smi, NCCL, nccl-tests."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.importers.files import Known, import_files
    from profiles.importers.options import ImportOptions, import_options

__all__, __getattr__ = public(__name__, __file__)
