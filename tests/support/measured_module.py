"""A module run on a CPU: FLOPs by PyTorch's counter, and what autograd keeps."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from profiles.trace import module_of

HUGGING_FACE = "tests.support.hugging_face_modules"
OWN = "tests.support.user_modules"
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of a batch of two."""

    flops: int
    backward_flops: int
    saved_bytes: int
    parameters: int


def loss_of(made: Any) -> Tensor:
    """The first number of what a module gives, else the mean square of its output."""
    leaves = [
        one
        for one in tree_leaves(made)
        if isinstance(one, Tensor) and one.is_floating_point()
    ]
    scalars = [one for one in leaves if one.ndim == 0]
    return scalars[0] if scalars else leaves[0].square().mean()


def measured(reference: str) -> Measured:
    """What the module does with two samples."""
    torch.manual_seed(0)
    module, example = module_of(reference, meta=False)
    given = example.with_batch(2)
    own = [*module.parameters(), *module.buffers()]
    outside = {one.untyped_storage().data_ptr() for one in own}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(one: Tensor) -> Tensor:
        storage = one.untyped_storage()
        if storage.data_ptr() not in outside:
            kept[storage.data_ptr()] = (storage.nbytes(), one)
        return one

    forward, backward = (FlopCounterMode(display=False) for _ in range(2))
    saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            with saving, forward:
                loss = loss_of(module(*given.args, **given.kwargs))
            with backward:
                loss.backward()
    return Measured(
        flops=forward.get_total_flops(),
        backward_flops=backward.get_total_flops(),
        saved_bytes=sum(size for size, _ in kept.values()),
        parameters=sum(one.numel() for one in module.parameters()),
    )
