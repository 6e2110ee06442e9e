"""Residual networks and U-Nets are those that PyTorch runs: FLOPs, bytes kept."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.simulation.flops import block_flops
from costmodel.stages.layout_cost import LayoutPricer
from profiles.hardware.catalog import cluster
from profiles.models.job import Job
from profiles.models.param_count import parameters
from profiles.models.spec import ModelSpec, ResnetSpec, UnetSpec

SPECS: dict[str, ModelSpec] = {
    "bottlenecks": ResnetSpec(
        blocks=(2, 3, 1), base_channels=16, width=2, image_size=64, classes=10
    ),
    "basic": ResnetSpec(
        blocks=(2, 2), block="basic", base_channels=16, image_size=64, classes=10
    ),
    "images": UnetSpec(depth=3, features=8, dimensions=2, image_size=64, channels=3),
    "volumes": UnetSpec(depth=2, features=4, dimensions=3, image_size=16),
    "strided": UnetSpec(
        depth=2, features=8, dimensions=3, image_size=32, classes=4, strided=True
    ),
}
BATCH = 2


def job_of(spec: ModelSpec) -> Job:
    return Job(model="one", spec=spec, seq_len=1, global_batch=BATCH)


def module_of(spec: Any) -> Any:
    from tests.support.convolutional import Unet, resnet

    return resnet(spec) if isinstance(spec, ResnetSpec) else Unet(spec)


def images(spec: Any) -> Any:
    torch = pytest.importorskip("torch")
    dimensions = getattr(spec, "dimensions", 2)
    return torch.randn(BATCH, spec.channels, *[spec.image_size] * dimensions)


@pytest.mark.parametrize("name", SPECS)
def test_parameters_and_flops_are_those_of_the_module(name: str) -> None:
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    spec = SPECS[name]
    module, job = module_of(spec), job_of(spec)
    assert sum(one.numel() for one in module.parameters()) == parameters(spec).total
    with FlopCounterMode(display=False) as counter:
        module(images(spec))
    ours = sum(count * block_flops(block, job) for block, count in job.graph.blocks)
    assert ours == pytest.approx(counter.get_total_flops(), rel=1e-9)


@pytest.mark.parametrize("name", SPECS)
def test_bytes_kept_for_backward_are_those_of_autograd(name: str) -> None:
    torch = pytest.importorskip("torch")
    spec = SPECS[name]
    module, job = module_of(spec), job_of(spec)
    where = machine(cluster("dgx-a100-80gb"))
    choice = Uniform(micro_batch=BATCH, zero=0, precision="fp32")
    layout = spell_out(choice, job.graph, BATCH)
    found = LayoutPricer(job=job, layout=layout, machine=where).columns()
    owned = {one.untyped_storage().data_ptr() for one in module.parameters()}
    kept: dict[int, int] = {}
    alive = []

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = module(images(spec))
        shape = (BATCH, *logits.shape[2:])
        torch.nn.functional.cross_entropy(logits, torch.zeros(shape, dtype=torch.long))
    assert float(found.saved_bytes[0]) == pytest.approx(sum(kept.values()), rel=0.02)
