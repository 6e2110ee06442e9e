"""How frameworks cut layers into pipeline stages, where not as evenly as can be.

by cost   nanotron: stages of equal cost, the head as layers       → `layers_by_cost`
"""

from __future__ import annotations

from profiles.models.spec import DecoderSpec


def layers_by_cost(spec: DecoderSpec, stages: int) -> tuple[int, ...] | None:
    """Layers of stages of about equal cost, as nanotron cuts them; None where that
    leaves a stage without any module.

    A layer costs its attention's and its MLP's products, the head its own; a stage ends
    with the module that takes the cost so far over its share of the whole
    (`get_block_compute_costs`, `build_model`).

    >>> from profiles.models.catalog import model
    >>> layers_by_cost(model("llama-3-8b").spec, 4)
    (9, 9, 8, 6)
    """
    attention = 4 * spec.heads * spec.head_dim * spec.hidden
    layer = attention + 3 * spec.ffn_hidden * spec.hidden
    whole = spec.layers * layer + spec.vocab * spec.hidden
    counts, stage = [0] * stages, 0
    for number in range(1, spec.layers + 1):
        counts[stage] += 1
        if number * layer > whole * (stage + 1) / stages and stage < stages - 1:
            stage += 1
    return tuple(counts) if all(counts[:-1]) else None
