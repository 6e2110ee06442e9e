"""The adapters of a fine-tuning run (task=lora): what its framework's recipe trains."""

from __future__ import annotations

from typing import Final

from costmodel.runs.cells import Cells
from profiles.adapters import ATTENTION, LINEAR_LAYERS, QUERY_KEY_VALUE, Adapters

# MLPerf Training's benchmark rules: rank 16 on the attention's two products
# (llama2_70b_lora, reference implementation).
_MLPERF: Final = Adapters(rank=16, targets=ATTENTION)
# NeMo's and Megatron-Bridge's recipes for performance: dim=8, target_modules
# linear_qkv alone (their fine-tuning recipes, `performance_mode`).
_NEMO: Final = Adapters(rank=8, targets=QUERY_KEY_VALUE)
# Elsewhere every linear layer, as QLoRA has it (Dettmers et al., 2023, section 4).
_OTHERS: Final = Adapters(rank=16, targets=LINEAR_LAYERS)
_RECIPES: Final = (("mlperf", _MLPERF), ("nemo", _NEMO), ("bridge", _NEMO))


def adapters_of(cells: Cells) -> Adapters | None:
    """What is trained beside frozen weights; None where everything is."""
    if cells.word("task") != "lora":
        return None
    software = (cells.word("framework") or "").lower()
    found = next((one for name, one in _RECIPES if name in software), _OTHERS)
    cells.assumed["lora_rank"] = found.rank
    cells.assumed["lora_targets"] = ",".join(found.targets)
    return found
