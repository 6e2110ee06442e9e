"""Figures, devices and links that tests make up."""

from __future__ import annotations

from typing import Any

from profiles.hardware.clusters import Device, Figure, Level


def figure(value: float, unit: str) -> Figure:
    return Figure(value=value, unit=unit, source="made up for a test")


def toy_device(**changes: Any) -> Device:
    """An A100's numbers, but for *changes*."""
    fields = {
        "name": "toy",
        "architecture": "ampere",
        "memory": figure(80, "GB"),
        "usable_memory": figure(79, "GB"),
        "memory_bandwidth": figure(2, "TB/s"),
        "peak": {"bf16": figure(312, "TFLOP/s")},
        "multiprocessors": 108,
        "host_link": figure(32, "GB/s"),
    }
    return Device(**{**fields, **changes})


ETHERNET = Level(
    name="between",
    kind="ethernet",
    devices=None,
    bandwidth=figure(25 / 8, "Gbit/s"),  # a node's 25 Gb/s, over its 8 devices
    latency=figure(30, "us"),
)
