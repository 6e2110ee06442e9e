"""The experts and the latent attention that a row tells of.

Columns hold how many experts there are, how wide, and which layers have none; what no
column holds (which layers after those, the ranks of latents) is the catalogue's, of the
model that the row's name begins with, else DeepSeek's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from costmodel.runs.cells import Cells
from profiles.errors import MeshwrightError
from profiles.models.catalog import model, names
from profiles.models.spec import DecoderSpec, MlaSpec, MoeSpec

ATTENTIONS: Final = ("mha", "gqa", "mqa", "mla")
# Of DeepSeek-V2 and V3 alike (arXiv 2405.04434, section 3.1.2; 2412.19437, 4.2).
LATENT: Final = MlaSpec(
    kv_rank=512,
    query_rank=1536,
    rope_head_dim=64,
    nope_head_dim=128,
    value_head_dim=128,
)
_CELLS: Final = ("experts", "experts_per_token", "expert_ffn_hidden", "shared_experts")


def experts_of(cells: Cells) -> MoeSpec | None:
    """The experts of a row that gives its shape; None for a dense model.

    Raises InvalidSpec naming the missing cell.
    """
    every = cells.whole("experts", least=0)
    if not every:
        if cells.word("kind") == "moe":
            raise cells.missing("experts", "a mixture's experts must be counted")
        return None
    width, kin = cells.needed("expert_ffn_hidden"), kin_of(cells)
    shared = cells.given("shared_experts", cells.whole("shared_experts", least=0), 0)
    dense = cells.given("dense_layers", cells.whole("dense_layers", least=0), 0)
    known = kin.moe if kin is not None and kin.moe is not None else None
    return MoeSpec(
        experts=every,
        experts_per_token=cells.needed("experts_per_token"),
        expert_ffn_hidden=width,
        shared_experts=shared,
        shared_ffn_hidden=width if shared else 0,
        first_layer=dense or (known.every - 1 if known else 0),
        every=known.every if known else 1,
        router_groups=known.router_groups if known else 1,
    )


def latent_of(cells: Cells) -> MlaSpec | None:
    """The latent attention of a row; None where it has another one."""
    if cells.choice("attention", ATTENTIONS) != "mla":
        return None
    kin = kin_of(cells)
    found = kin.mla if kin is not None and kin.mla is not None else LATENT
    cells.assumed["mla"] = f"kv_rank {found.kv_rank}, query_rank {found.query_rank}"
    return found


def overridden_experts(cells: Cells, known: MoeSpec | None) -> MoeSpec | None:
    """*known* experts with the row's own cells in place."""
    found = {name: cells.whole(name, least=0) for name in _CELLS}
    given: dict[str, Any] = {name: n for name, n in found.items() if n is not None}
    dense = cells.whole("dense_layers", least=0)
    if known is None or (not given and dense is None):
        return known
    if dense:
        given["first_layer"] = dense
    if "expert_ffn_hidden" in given and (known.shared_experts or given.get(_CELLS[3])):
        given["shared_ffn_hidden"] = given["expert_ffn_hidden"]
    return replace(known, **given)


def kin_of(cells: Cells) -> DecoderSpec | None:
    """The decoder of the catalogue whose name the row's model begins with."""
    return _kin(spelled(cells.word("model") or ""))


@lru_cache(maxsize=1024)
def _kin(name: str) -> DecoderSpec | None:
    fitting = [one for one in names() if f"{name}-".startswith(f"{one}-")]
    try:
        spec = model(max(fitting, key=len, default=name)).spec
    except MeshwrightError:
        return None
    return spec if isinstance(spec, DecoderSpec) else None


def spelled(name: str) -> str:
    """A model's name as the catalogue writes it.

    >>> spelled("Qwen3_30B_a3B")
    'qwen3-30b-a3b'
    """
    return name.lower().replace(" ", "-").replace("_", "-")
