"""Devices, clusters and precisions, each number with its unit and source."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.hardware.catalog import (
        DEFAULT_CLUSTER,
        cluster,
        cluster_names,
        device,
        device_names,
        knows_cluster,
        parse_cluster,
    )
    from profiles.hardware.cluster_files import cluster_document, cluster_schema
    from profiles.hardware.clusters import Cluster, Device, Figure, Island, Level
    from profiles.hardware.precisions import (
        GRADIENT_FORMATS,
        PRECISIONS,
        SHIFTED,
        Format,
        Precision,
        precision,
    )

__all__, __getattr__ = public(__name__, __file__)
