"""What passes between stages where layers read others than the one before them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.machine.assembly import machine
from costmodel.stages.layout_cost import LayoutPricer
from costmodel.stages.pipeline_p2p import Sender, boundary, transfers
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

ON = machine(cluster("dgx-a100-80gb"))


def job(name: str) -> Job:
    return model(name).job(global_batch=4)


@pytest.mark.parametrize("name", ["unet-2d", "t5-small", "resnet-50", "bert-base"])
def test_each_boundary_takes_what_it_carries(name: str) -> None:
    """A stage a layer: the transfer of each boundary is that of its bytes."""
    one = job(name)
    stages = one.graph.body + 2
    layout = spell_out(Uniform(pp=stages, zero=0), one.graph, one.global_batch)
    carried = []
    last = -1
    for stage in layout.stages[:-1]:
        last += len(stage.layers)
        carried.append(one.graph.handed_on[last])
    sender = Sender.of(layout, layout.stages[0])
    far = np.arange(1, stages) % 8 == 0
    alone = boundary(
        one, ON, layout.precision, sender, far=far, width=np.array(carried)
    )
    found = transfers(layout, one, ON).seconds
    assert found == pytest.approx(alone.seconds, rel=1e-12)
    least = boundary(one, ON, layout.precision, sender, far=far)
    assert np.all(least.seconds <= found * (1 + 1e-12))


def test_stages_hold_the_skips_that_come_to_them() -> None:
    """Of a U-Net on a stage a layer: as many bytes more than without skips as come to
    each from further before."""
    one = job("unet-2d")
    graph = one.graph
    layout = spell_out(Uniform(pp=graph.body, zero=0), graph, one.global_batch)
    found = LayoutPricer(job=one, layout=layout, machine=ON).columns()
    more, first = [], 0
    for stage in layout.stages:
        passing = (skip for skip in graph.skips if skip.passes(first - 1))
        more.append(2 * sum(skip.elements for skip in passing))
        first += len(stage.layers)
    alone = replace(one)
    vars(alone)["graph"] = replace(graph)
    vars(alone.graph)["skips"] = ()
    without = LayoutPricer(job=alone, layout=layout, machine=ON).columns()
    assert found.saved_bytes - without.saved_bytes == pytest.approx(more)
    assert max(more) == 2 * sum(skip.elements for skip in graph.skips[:3]) + 2 * (
        graph.skips[3].elements
    )


def test_what_decoder_layers_read_is_held_once_a_stage() -> None:
    """All layers of a T5 on one stage keep the encoder's output once; on two, the
    second keeps it too."""
    one = job("t5-small")

    def saved(pp: int) -> float:
        layout = spell_out(Uniform(pp=pp, zero=0), one.graph, one.global_batch)
        found = LayoutPricer(job=one, layout=layout, machine=ON).columns()
        return float(np.sum(found.saved_bytes))

    encoded = 512 * 512 * 2
    assert saved(3) - saved(1) == pytest.approx(encoded)
