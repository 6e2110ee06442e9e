"""What a row recomputes: its policy, or the words in which a partial one is told.

What a row keeps off the device: its `offload` cell, and the ratio told in words.

How frameworks cut layers into pipeline stages, where not as evenly as can be.

by cost   nanotron: stages of equal cost, the head as layers       → `layers_by_cost`

The software that a row ran on: its framework, and the kernels the row names.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from costmodel.layout import NOTHING, Offload, parse_offload
from costmodel.machine import DEFAULT, UNKNOWN, Framework, framework_of_run
from costmodel.runs.cells import Cells
from costmodel.simulation import flash_default
from profiles.errors import Contradiction, Unsupported
from profiles.hardware import Cluster
from profiles.models import DecoderSpec

_RATIO: Final = re.compile(r"offload ratio ([0-9.]+)")  # Yuan et al. (ATC 2024)


def offload_of(cells: Cells) -> Offload:
    """optimizer, parameters, activations=RATIO, joined by + or commas; or none.

    Raises InvalidSpec for other words, and for activations of which no share is told.
    """
    said = cells.word("offload")
    if said is None:
        return NOTHING
    parts = said.lower().replace("+", ",").split(",")
    if "activations" in parts:
        told = _RATIO.search(cells.word("recompute_detail") or "")
        if told is None:
            raise cells.wrong("offload", "written with its ratio: activations=RATIO")
        parts[parts.index("activations")] = f"activations={told[1]}"
    found = parse_offload(",".join(parts))
    if found.anything:
        cells.assumed["offload_to"] = found.tier
    return found


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


# attention_kernel as runs call it → the kernel that is priced.
KERNELS: Final = {
    "naive": "materialised",
    "fused-softmax": "fused-softmax",
    "flash-1": "flash-1",
    "flash-2": "flash-2",
    "flash-3": "flash-3",
}


def framework_of(cells: Cells) -> tuple[Framework, tuple[str, ...]]:
    """The software with the row's kernels in place, and what to warn of.

    Raises UnknownName for a kernel, InvalidSpec for a flag that cannot be read.
    """
    printed = cells.word("framework")
    base = framework_of_run(printed or DEFAULT)
    warnings: tuple[str, ...] = ()
    if printed is None:
        cells.assumed["framework"] = base.name
    elif base.name == DEFAULT and DEFAULT not in printed.lower():
        cells.assumed["framework"] = base.name
        base = replace(base, footprint=UNKNOWN)
        warnings = (f"framework {printed!r} is not known: priced as {base.name}",)
    kernel = cells.choice("attention_kernel", KERNELS)
    fused = cells.flag("fused_norm")
    if kernel is not None and kernel.startswith("flash"):
        base = base.variant(kernels={"flash": KERNELS[kernel]})
    elif kernel is not None:
        base = base.variant(kernels={"unfused": KERNELS[kernel]})
    if fused is None:
        cells.assumed["fused_norm"] = base.kernels.fused_norm
    else:
        base = base.variant(kernels={"fused_norm": fused})
    return base, warnings


def flash_of(cells: Cells, where: Cluster, precision: str) -> bool:
    """Whether flash attention runs: by the kernel, the flag, or wherever it can, which
    is in 16 bits (Dao et al., the kernels' README).

    Raises Contradiction where kernel and flag exclude each other.
    """
    kernel = cells.choice("attention_kernel", KERNELS)
    flag = cells.flag("flash_attention")
    if kernel is None:
        can = precision not in ("fp32", "tf32")
        return cells.given(
            "flash_attention", flag, lambda: can and flash_default(where)
        )
    flash = kernel.startswith("flash")
    if flag is not None and flag != flash:
        raise Contradiction(
            f"attention_kernel={kernel} contradicts flash_attention="
            f"{cells.word('flash_attention')}; change one of them"
        )
    return flash


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
