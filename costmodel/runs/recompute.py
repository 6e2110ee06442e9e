"""What a row recomputes: its policy, or the words in which a partial one is told."""

from __future__ import annotations

from typing import Final

from costmodel.runs.cells import Cells
from profiles.errors import Unsupported

_OP_LEVEL: Final = (
    "input_norm,rotary,projection,attention_residual,mlp_norm,mlp_up=0.5,activation"
)
# What recompute_detail says → the preset, or the operators, that it means.
DETAILS: Final = (
    # Yuan et al. (ATC 2024, section 3.2)
    ("recompute mlp activation func + norm", "cheap-ops"),
    # torchtitan's op-level selective checkpointing keeps attention and every second
    # matrix product (activation_checkpoint.py): of q, k, v, o, up, gate, down those
    # at odd places. What it makes again is nearest to:
    ("op-level sac", _OP_LEVEL),
    ("per-op sac", _OP_LEVEL),
    ("toml default", _OP_LEVEL),
    # MaxText's policies: products with weights are kept, all else is made again; with
    # minimal_flash the attention core is kept too.
    ("minimal_flash", "input_norm,rotary,mlp_norm,activation"),
    ("minimal", "input_norm,rotary,attention,mlp_norm,activation"),
    ("some blocks", "full"),  # as many as `layers_again_of` says
    # Megatron-Core's --recompute-modules: its norms, the experts' activation, or all of
    # an expert layer's MLP.
    ("selective: norm, moe_act", "input_norm,mlp_norm,activation"),
    (
        "selective: layernorm, moe",
        "input_norm,mlp_norm,router,top_k,dispatch,mlp_up,activation,mlp_down,combine",
    ),
    # DeepSeek-V3 (arXiv 2412.19437, section 3.2.3)
    (
        "selective (rmsnorm, mla up-proj)",
        "input_norm,mlp_norm,q_norm,kv_norm,q_up,kv_up,rotary",
    ),
    ("not printed", None),
    ("none", "none"),
)


_SOME: Final = "some blocks"


def recompute_of(cells: Cells) -> str:
    """A preset or list of operators, as `retention.preset` takes it.

    Raises Unsupported for a partial policy whose words are not known.
    """
    policy, detail = cells.word("recompute"), cells.word("recompute_detail")
    if policy is not None or detail is None:
        return cells.given("recompute", policy, "none")
    for words, meaning in DETAILS:
        if words in detail.lower():
            return cells.given("recompute", meaning, "none")
    raise Unsupported(
        f"recompute_detail={detail[:60]!r} does not say which operators; fill in "
        "recompute: none, selective, cheap-ops, full, or operators by name"
    )


def layers_again_of(cells: Cells, layers: int) -> int | None:
    """How many of a stage's *layers* are made again; None is all.

    Where some blocks are, and nobody says which, every second one is: torchtitan's
    `selective_ac_option` of 2.
    """
    if cells.word("recompute") or _SOME not in (cells.word("recompute_detail") or ""):
        return None
    return cells.given("recompute_layers", None, layers // 2)
