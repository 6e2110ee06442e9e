"""Traces as layers, and layers as the blocks of a graph."""

from __future__ import annotations

import pytest

from profiles.models import ENDS, Kind, ModelGraph
from profiles.trace import layers_named, module_spec, trace
from profiles.trace.layers import crossings, layers_of
from tests.support.measured_module import HUGGING_FACE, OWN, needs_transformers


def graph(name: str, where: str = OWN) -> ModelGraph:
    return module_spec(f"{where}:{name}")[1]


@needs_transformers
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("gpt2", [("layer", 4)]),
        ("llama", [("layer", 4)]),
        ("mixtral", [("layer", 4)]),
        ("bert", [("layer", 4)]),
        ("vit", [("layer", 4)]),
        # The first block of each half makes the bias of positions for the others.
        (
            "t5",
            [*((f"layer{n}", 1) for n in ("", "-2", "-3", "-4")), ("layer-5", 2)],
        ),
    ],
)
def test_repeated_blocks_are_one(name: str, layers: list[tuple[str, int]]) -> None:
    found = graph(name, HUGGING_FACE)
    assert [(one.name, count) for one, count in found.runs] == layers
    assert [one for one in found.layer_names if not one.isdigit()] == list(ENDS)


def test_cuts_are_where_the_lists_of_the_module_are() -> None:
    found = layers_named(trace(f"{OWN}:resnet"))
    paths = [layer.path for layer in found if layer.path]
    assert paths == [
        f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)
    ]
    assert found[1].steps.start == found[0].steps.stop
    assert found[-1].steps.stop == len(trace(f"{OWN}:resnet").steps)


def test_a_cut_is_where_the_fewest_elements_cross() -> None:
    found = trace(f"{OWN}:unet")
    layers, crossing = layers_of(found), crossings(found)
    middle = layers.body[1]  # begins with the pooled picture, an eighth
    assert found.steps[middle.start].function == "max_pool3d" or (
        found.steps[middle.start - 1].function == "max_pool3d"
    )
    assert crossing[middle.start] == min(
        crossing[one] for one in range(layers.body[0].stop - 2, middle.start + 1)
    )


def test_without_lists_the_work_is_spread_evenly() -> None:
    found = layers_of(trace(f"{OWN}:lstm"))
    assert 1 <= len(found.body) <= 8
    assert sum(map(len, found.body)) + len(found.ending) == len(
        trace(f"{OWN}:lstm").steps
    )


def test_skips_are_handed_on_from_layer_to_layer() -> None:
    found = graph("unet")
    assert len(found.skips) == 3
    assert all(skip.last - skip.source > 1 for skip in found.skips)
    features, size = 8, 16
    largest = max(skip.elements for skip in found.skips)
    assert largest == features * size**3  # of the first level, in the last layer
    for block in found.distinct():
        assert block.graph.nodes


def test_a_layer_that_all_share_is_counted_once() -> None:
    found = graph("odd")
    held = [
        (layer, one.name)
        for layer, block in found.layer_blocks.items()
        for one in block.operators
        if one.kind is Kind.MATMUL and one.name.startswith("shared")
    ]
    (tied,) = found.tied
    assert set(held) == set(tied)
    assert len(held) == 4


def test_parameters_of_a_graph_are_those_of_the_module() -> None:
    from profiles.models.param_count import graph_parameters

    for name in ("resnet", "unet", "dlrm", "lstm", "odd", "by_hand"):
        count = trace(f"{OWN}:{name}").parameter_count
        found = graph_parameters(graph(name))
        assert found.trained == count, name
