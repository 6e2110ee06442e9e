"""Names for PyTorch's types in rooms that are imported without PyTorch."""

from __future__ import annotations

from typing import Any

Tensor = Any  # torch.Tensor
Parameter = Any  # torch.nn.Parameter
Device = Any  # torch.device
DType = Any  # torch.dtype
