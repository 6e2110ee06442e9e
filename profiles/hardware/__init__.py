"""Devices, clusters and precisions, each number with its unit and source."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from profiles.hardware.catalog import (
        DEFAULT_CLUSTER,
        cluster,
        device,
        device_names,
        knows_cluster,
        parse_cluster,
    )
    from profiles.hardware.clusters import Cluster, Island, Level
    from profiles.hardware.devices import Device
    from profiles.hardware.precisions import (
        GRADIENT_FORMATS,
        PRECISIONS,
        Format,
        Precision,
        precision,
    )
    from profiles.hardware.quantity import Figure

__all__ = [
    "DEFAULT_CLUSTER",
    "GRADIENT_FORMATS",
    "PRECISIONS",
    "Cluster",
    "Device",
    "Figure",
    "Format",
    "Island",
    "Level",
    "Precision",
    "cluster",
    "device",
    "device_names",
    "knows_cluster",
    "parse_cluster",
    "precision",
]

__getattr__ = lazily(__name__, __file__)
