"""Models whose kinds of layers change more than once: stages in runs of equal ones."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.batched.rows import stage_runs
from costmodel.layout.strategy import split_layers
from profiles.models.catalog import model

NAMES = ("t5-small", "t5-11b", "clip-vit-large", "llava-1.5-7b", "resnet-152")


@pytest.mark.parametrize("name", NAMES)
def test_runs_are_the_stages_in_order(name: str) -> None:
    """Many stage counts at once and each alone: every stage has the layers that its cut
    has, in model order."""
    graph = model(name).job().graph
    order = [block.name for block, count in graph.runs for _ in range(count)]
    stages = np.arange(1, graph.body + 3)
    together = stage_runs(graph, stages)
    for row, count in enumerate(stages.tolist()):
        cut = split_layers(graph.body, count, graph.tail)
        ends = np.cumsum(cut)
        wanted = [
            {kind: order[end - size : end].count(kind) for kind in graph.kinds}
            for size, end in zip(cut, ends, strict=True)
        ]
        for runs, at in ((together, row), (stage_runs(graph, np.array([count])), 0)):
            found = [
                {kind: int(layers[at]) for kind, layers in run.layers.items()}
                for run in runs
                for _ in range(int(run.count[at]))
            ]
            assert found == wanted
