"""The machine that a question is about: cluster, software, measured samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from costmodel.machine import Machine, machine
from costmodel.pins import OVERLAPS, Pins
from costmodel.profiled import Profile
from costmodel.software import (
    DEFAULT,
    Software,
    shares_cores,
    software,
    software_on,
    with_buckets,
    with_overlap,
)
from profiles.cluster import Cluster
from profiles.device import Device
from profiles.errors import Contradiction
from profiles.job_options import JobOptions
from profiles.units import MB

NO_OVERLAP: Final = "none (ranks communicate with the cores that compute)"
NO_CUT: Final = (
    "--overlap tp cuts products with the gathers and scatters of sequence parallelism, "
    "which --no-sequence-parallel does without; leave one of the two out"
)
OURS: Final = (DEFAULT, "fsdp2")  # whose operators are those that are measured


def machine_of(
    cluster: Cluster,
    wish: JobOptions,
    pins: Pins,
    profile: Profile | None,
    assumed: dict[str, Any],
) -> Machine:
    """The cluster under the software that was asked for, with measured samples.

    Raises StaleProfile for samples of another device.
    """
    framework = framework_of(wish, pins, cluster.islands[0].device, assumed)
    if profile is None:
        return machine(cluster, framework)
    assumed["profile"] = profile.words
    return machine(cluster, framework, samples=profile.samples)


def remarks_on(profile: Profile | None, on: Machine) -> tuple[str, ...]:
    """What should be known of measured samples before a price made of them is read."""
    if profile is None:
        return ()
    found = list(profile.warnings)
    if on.software.name not in OURS:
        found.append(
            f"the samples are of PyTorch's own operators; {on.software.name} may run "
            "others"
        )
    return tuple(found)


def framework_of(
    wish: JobOptions, pins: Pins, device: Device, assumed: dict[str, Any]
) -> Software:
    """The software that is priced, with the overlap that was asked for."""
    base = software(wish.framework or DEFAULT)
    if wish.framework is None:
        assumed["framework"] = base.name
    if wish.grad_dtype is not None:
        base = replace(base, footprint=base.footprint.as_asked())
    if pins.bucket_mb is not None:
        base = with_buckets(base, pins.bucket_mb * MB)
    if pins.overlap is None:
        there = software_on(base, device)
        assumed["overlap"] = ",".join(sorted(there.overlap)) or "none"
        if shares_cores(device):
            assumed["overlap"] = NO_OVERLAP
        return there
    asked = [part for part in pins.overlap.split(",") if part and part != "none"]
    for part in asked:
        if part not in OVERLAPS:
            raise Contradiction(
                f"--overlap {part!r} is not one of {', '.join(OVERLAPS)}, none"
            )
    return with_overlap(base, frozenset(asked))
