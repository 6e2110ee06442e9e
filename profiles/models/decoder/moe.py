"""A mixture of experts as operators, in place of a layer's MLP (GShard, 2020).

    router     scores of all experts for each token, in fp32; the best k are chosen
    dispatch   each token's row copied k times, sorted by expert, sent to its rank
    mlp_*      the experts' products and activation, over the rows that came
    combine    rows sent back, weighted and summed by token
    shared_*   the MLP that every token takes beside (DeepSeekMoE, 2024)
    latent_*   where experts are as narrow: the product that makes what is sent to them,
               and the one after they are summed (LatentMoE, Nemotron 3, 2025)

Rows sorted by expert have the dimension `routed` for batch and sequence. The experts'
operators are called as the MLP's are, so that what is recomputed is named alike.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.models.graph import (
    ROWS,
    STREAM,
    Element,
    Kind,
    Operator,
    Tensor,
    mlp_steps,
    product,
)
from profiles.models.spec import DecoderSpec, MoeSpec

# Elements moved for each element that is routed: dispatch gathers rows by expert, and
# sorts what other ranks sent (each one read and one write); combine undoes both, k rows
# read for one written. [derived] Megatron-Core, all-to-all dispatcher with permutation
# fused.
SORTED = 2.0
# Passes over the scores, in 16-bit elements: softmax or sigmoid in fp32, top-k, the map
# of who goes where and its sums, the balancing loss [derived].
ROUTED_FORWARD, ROUTED_BACKWARD = 12.0, 8.0
# Host work in ordinary operators: scores, top-k, counts by expert and their copy to the
# host, sorting, the exchange [assumed] from the kernels that each step launches.
LAUNCHES = {"top_k": 4.0, "dispatch": 4.0, "combine": 3.0}
# Of these what has no gradient: choosing and the map of who goes where; counts by
# expert, their copy and sorting them [assumed] half of either.
WITHOUT_GRADIENT = {"top_k": 2.0, "dispatch": 2.0}
LATENT = "latent"  # the dimension of what is sent, where it is not `hidden`


def expert_extents(moe: MoeSpec) -> dict[str, int]:
    """The dimensions that experts add: `routed` is how many a token goes to."""
    return {
        "experts": moe.experts,
        "routed": moe.experts_per_token,
        "expert_ffn": moe.expert_ffn_hidden,
        "shared_ffn": moe.shared_experts * moe.shared_ffn_hidden,
        **({LATENT: moe.latent} if moe.latent else {}),
    }


def expert_mlp(spec: DecoderSpec, moe: MoeSpec, norm: Tensor) -> list[Operator]:
    """What stands for the MLP."""
    width = LATENT if moe.latent else "hidden"
    rows = Tensor(name="dispatch_out", dims=("routed", width))
    experts = mlp_steps(spec, rows, "expert_ffn", kind=Kind.GROUPED_MATMUL, outer=width)
    shared: list[Operator] = []
    if moe.shared_experts:
        shared = mlp_steps(spec, norm, "shared_ffn", name="shared")
    if moe.shared_gate and shared:
        shared.append(_shared_gate(norm, shared[-1].output))
    down, sent = _latent_down(norm) if moe.latent else ([], norm)
    made = experts[-1].output
    after = [_combine(moe, made, shared)]
    if moe.latent:
        after = _latent_up(_combine(moe, made, []), shared)
    return [
        *_router(moe, norm),
        *shared,
        *down,
        dispatch_step("dispatch", sent, rows),
        *experts,
        *after,
    ]


def _shared_gate(norm: Tensor, made: Tensor) -> Operator:
    """What the shared experts made times σ(w · x), with one w (Qwen2-MoE)."""
    return Operator(
        name="shared_gate",
        kind=Kind.ELEMENTWISE,
        function="gate",
        inputs=(norm, made),
        output=Tensor(name="shared_gate_out", dims=STREAM),
        vectors=1,
        saves=(norm, made),
        forward_elements=3,
        backward_elements=5,
    )


def _latent_down(norm: Tensor) -> tuple[list[Operator], Tensor]:
    made = Tensor(name="latent_down_out", dims=(*ROWS, LATENT))
    return [product("latent_down", (norm,), made, (LATENT,), "hidden")], made


def _latent_up(combine: Operator, shared: list[Operator]) -> list[Operator]:
    """The product after the experts' sum, and the sum with that of shared ones."""
    summed = Tensor(name="combine_out", dims=(*ROWS, LATENT))
    up = Tensor(name="latent_up_out", dims=STREAM)
    operators = [
        replace(combine, output=summed),
        product("latent_up", (summed,), up, ("hidden",), LATENT),
    ]
    if not shared:
        return operators
    add = Operator(
        name="shared_sum",
        kind=Kind.ELEMENTWISE,
        function="residual",
        inputs=(up, shared[-1].output),
        output=Tensor(name="shared_sum_out", dims=STREAM),
        forward_elements=3,
        backward_elements=0,
    )
    return [*operators, add]


def _router(moe: MoeSpec, norm: Tensor) -> list[Operator]:
    scores = Tensor(name="router_out", dims=(*ROWS, "experts"), element=Element.FP32)
    chosen = Tensor(name="top_k_out", dims=scores.dims, element=Element.FP32)
    mask = Tensor(
        name="top_k_map", dims=scores.dims, element=Element.MASK, internal=True
    )
    return [
        product(
            "router", (norm,), scores, ("experts",), "hidden", bias=moe.router_bias
        ),
        Operator(
            name="top_k",
            kind=Kind.ELEMENTWISE,
            function="top-k",
            inputs=(scores,),
            output=chosen,
            saves=(chosen, mask),
            forward_elements=ROUTED_FORWARD,
            backward_elements=ROUTED_BACKWARD,
            kernels=8,
            launches=LAUNCHES["top_k"],
            without_gradient=WITHOUT_GRADIENT["top_k"],
        ),
    ]


def dispatch_step(name: str, sent: Tensor, rows: Tensor) -> Operator:
    """Rows *sent* to their experts, where they come as *rows*."""
    return Operator(
        name=name,
        kind=Kind.DISPATCH,
        function="dispatch",
        inputs=(sent,),
        output=rows,
        forward_elements=2 * SORTED,
        backward_elements=2 * SORTED,
        kernels=3,
        launches=LAUNCHES["dispatch"],
        without_gradient=WITHOUT_GRADIENT["dispatch"],
    )


def combine_step(name: str, rows: Tensor, output: Tensor, chosen: int) -> Operator:
    """The *rows* of *chosen* experts a token, brought back and summed."""
    moved = (SORTED + 1) * chosen + 1
    return Operator(
        name=name,
        kind=Kind.COMBINE,
        function="combine",
        inputs=(rows,),
        output=output,
        forward_elements=moved,
        backward_elements=moved,
        kernels=2,
        launches=LAUNCHES["combine"],
    )


def _combine(moe: MoeSpec, rows: Tensor, shared: list[Operator]) -> Operator:
    """Also the sum with what the shared experts made."""
    output = Tensor(name="combine_out", dims=STREAM)
    alone = combine_step("combine", rows, output, moe.experts_per_token)
    beside = (shared[-1].output,) if shared else ()
    return replace(
        alone,
        inputs=(rows, *beside),
        forward_elements=alone.forward_elements + 2.0 * len(beside),
    )
