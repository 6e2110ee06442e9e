"""LAMP: 3-D U-Nets of whole volumes over a few small GPUs (Zhu et al., MICCAI 2020)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.estimator import Estimate, estimate
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.spec import UnetSpec


def whole_image(features: int, gpus: int, gigabytes: int) -> Estimate:
    """GPipe of one volume, all of it recomputed, as torchgpipe does by default."""
    known = model("unet-3d")
    assert isinstance(known.spec, UnetSpec)
    job = replace(known, spec=replace(known.spec, features=features)).job(
        global_batch=1
    )
    where = machine(cluster(f"dgx-v100-{gigabytes}gb"))
    choice = Uniform(
        pp=gpus,
        schedule="gpipe",
        recompute="full",
        zero=0,
        precision="fp32",
        flash_attention=False,
    )
    layout = spell_out(choice, job.graph, 1)
    return estimate(job, where.cluster, layout, on=where)


@pytest.mark.row(
    "J4", "32, 64, 128 features on 2 x 16, 4 x 16, 2 x 32 GB", expected="fit"
)
@pytest.mark.parametrize(
    ("features", "gpus", "gigabytes"), [(32, 2, 16), (64, 4, 16), (128, 2, 32)]
)
def test_what_lamp_trains_fits(features: int, gpus: int, gigabytes: int) -> None:
    """The minimum that MONAI's reimplementation of it gives for whole images."""
    assert whole_image(features, gpus, gigabytes).fits


@pytest.mark.row("J4", "128 features on GPUs of 16 GB", expected="do not fit")
def test_larger_ones_need_larger_gpus() -> None:
    peaks = [whole_image(size, 2, 32).peak_needed_bytes for size in (32, 64, 128)]
    assert peaks[0] < peaks[1] < peaks[2]
    assert peaks[2] > 0.9 * 16 * 2**30  # 128 features: not on GPUs of 16 GB
