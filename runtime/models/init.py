"""Initial parameters: the same for every layout, since each comes from its name.

Normal with deviation 0.02; the two products that write to the residual stream are
scaled by 1/√(2·layers) (Radford et al. 2019, section 2.3); norms 1, biases 0.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

DEVIATION = 0.02
_ONTO_STREAM = ("projection.weight", "down.weight")


def initialise(
    module: nn.Module, *, prefix: str, layers: int, seed: int, device: torch.device
) -> None:
    """Give a module on the meta device its storage on *device* and first values."""
    module.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            _fill(parameter, f"{prefix}{name}", layers, seed)


def _fill(parameter: Tensor, name: str, layers: int, seed: int) -> None:
    if name.endswith("bias"):
        parameter.zero_()
    elif "norm." in name:
        parameter.fill_(1.0)
    else:
        scale = (2 * layers) ** -0.5 if name.endswith(_ONTO_STREAM) else 1.0
        source = torch.Generator(parameter.device).manual_seed(_number(name, seed))
        parameter.normal_(0.0, DEVIATION * scale, generator=source)


def _number(name: str, seed: int) -> int:
    # A tied head is the table under another name, on another stage.
    known = name.replace("head.weight", "embedding.table.weight")
    digest = hashlib.sha256(f"{seed} {known}".encode()).digest()
    return int.from_bytes(digest[:7])
