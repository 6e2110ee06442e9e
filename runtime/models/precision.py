"""Precision policies as PyTorch carries them out.

fp32       weights, products and gradients in 32 bits
amp-bf16   weights in 32 bits, products by autocast in 16
bf16       weights in 16 bits, gradients summed and weights updated in 32
amp-fp16   as amp-bf16, the loss scaled (`loss_scale`)
fp16       as bf16, the loss scaled
tf32       as fp32, products of 19-bit operands, where the device has them
fp8        as bf16, the layers' products of 8-bit operands (`eight_bits`)
fp8-s2     as fp32, the layers' products of emulated operands (`emulated`)
fp8-wang   the same; weights are 16-bit floats, rounded at random when updated
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

from profiles.errors import Unsupported
from profiles.measure import multiplies


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a precision's name means for modules and their gradients."""

    parameter: torch.dtype = torch.float32  # what modules compute with
    activation: torch.dtype = torch.float32  # what travels between stages
    autocast: torch.dtype | None = None
    tf32: bool = False  # in 32-bit products
    eight_bits: bool = False  # in the products of layers
    emulated: str | None = None  # the scheme of 8 bits that those are computed by

    @property
    def rounds_updates(self) -> bool:
        """Whether updated weights are rounded at random to 16-bit floats."""
        return self.emulated == "wang"

    @property
    def scaled(self) -> bool:
        """Whether gradients would vanish if the loss were not scaled."""
        return torch.float16 in (self.parameter, self.autocast)

    @property
    def master(self) -> bool:
        """Whether the optimizer keeps the weights a second time, in fp32."""
        return self.parameter is not torch.float32

    @property
    def fully_shard(self) -> MixedPrecisionPolicy:
        """The same for `fully_shard`, whose own shards are the fp32 weights."""
        if not self.master:
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(
            param_dtype=self.parameter, reduce_dtype=torch.float32
        )

    def multiply(self) -> None:
        """Let this process multiply so from now on: 32-bit products in tf32."""
        if self.tf32:
            torch.backends.cuda.matmul.allow_tf32 = True

    def computing(self, device_type: str) -> AbstractContextManager[object]:
        """The context that a forward runs in."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device_type, dtype=self.autocast)


def autocast(*tensors: Tensor | None) -> list[Any]:
    """To autocast's precision where it is on: custom functions are not cast."""
    kind = next(item for item in tensors if item is not None).device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [None if item is None else item.to(dtype) for item in tensors]


POLICIES = {
    "fp32": Policy(),
    "amp-bf16": Policy(autocast=torch.bfloat16),
    "bf16": Policy(parameter=torch.bfloat16, activation=torch.bfloat16),
    "amp-fp16": Policy(autocast=torch.float16),
    "fp16": Policy(parameter=torch.float16, activation=torch.float16),
    "tf32": Policy(tf32=True),
    "fp8": Policy(parameter=torch.bfloat16, activation=torch.bfloat16, eight_bits=True),
    "fp8-s2": Policy(emulated="s2"),
    "fp8-wang": Policy(emulated="wang"),
}


def policy(name: str) -> Policy:
    """The policy called *name*; raises Unsupported for those that are only priced."""
    if name not in POLICIES:
        raise Unsupported(
            f"precision {name} is not supported; {', '.join(POLICIES)} are"
        )
    return POLICIES[name]


def require_multiplied(name: str, device: str) -> None:
    """Raise Unsupported where this machine's *device* does not multiply in *name*."""
    rules = policy(name)
    halves = torch.bfloat16 in (rules.parameter, rules.autocast)
    for number, needed, instead in (
        ("fp8", rules.eight_bits, "bf16"),
        ("tf32", rules.tf32, "fp32"),
        ("bf16", halves, "fp32"),
    ):
        if needed and not multiplies(number, device):
            what = "this CUDA device" if device == "cuda" else "a CPU"
            raise Unsupported(
                f"precision {name}: {what} does not multiply in {number}; plan with "
                f"--precision {instead}"
            )
