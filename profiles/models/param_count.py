"""How many parameters a model of any family has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from profiles.models.decoder import LayerParameters, Parameters, decoder_parameters
from profiles.models.families import model_graph
from profiles.models.graph import ENDS, EVERY_OPERATOR, Block, ModelGraph, Operator
from profiles.models.spec import DecoderSpec, EncoderDecoderSpec, ModelSpec

__all__ = ["LayerParameters", "Parameters", "parameters"]


def parameters(spec: ModelSpec) -> Parameters:
    """Count the parameters of *spec*: of a decoder by formulas, of others over the
    operators of its graph."""
    if isinstance(spec, DecoderSpec):
        return decoder_parameters(spec)
    found = graph_parameters(model_graph(spec, spec.family, spec.own_length or 1))
    halves = isinstance(spec, EncoderDecoderSpec)  # Brown et al. (2020), appendix D
    return replace(found, met=0.5) if halves else found


def graph_parameters(graph: ModelGraph) -> Parameters:
    """Those of *graph*. What several layers hold counts once, in the first of them; a
    token meets it in each of them that is a layer."""
    again = {holder for group in graph.sharing for holder in group[1:]}
    layers: Counter[LayerParameters] = Counter()
    ends = dict.fromkeys(ENDS, 0)
    for name, block in graph.layer_blocks.items():
        own = (one for one in block.operators if (name, one.name) not in again)
        met = sum(operator_parameters(one, block) for one in own)
        if name in ends:
            ends[name] += met
        elif met:
            held = 0 if (name, EVERY_OPERATOR) in again else met
            layers[LayerParameters(attention=0, mlp=held, norms=0, active_mlp=met)] += 1
    return Parameters(position=0, layers=tuple(layers.items()), **ends)


def operator_parameters(operator: Operator, block: Block) -> int:
    """All parameters of one operator."""
    if operator.shared:
        return 0
    vectors = operator.vectors
    count = vectors * block.extent(operator.vector_dim) if vectors else 0
    if not operator.has_weight:
        return count
    assert operator.contracted is not None, "a weight sums over something"
    wide = sum(block.extents[name] for name in operator.columns)
    return count + wide * block.extent(operator.contracted) + operator.bias * wide
