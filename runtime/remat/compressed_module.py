"""Saved tensors of any module in fewer bits: nothing is known of its operators.

Autograd's hooks see what is saved. Until the module's forward ends it is kept as it is;
then every storage of floating-point numbers is packed once, whoever saved it and as
which view, but those of parameters and buffers. After GACT (Liu et al., ICML 2022,
section 4): convolutions, attention and graph networks alike, a softmax too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from costmodel.layout import Treatment
from costmodel.operators import GROUP
from runtime.remat.quantized_activations import Packed, Quantizer, Slot
from runtime.remat.saved_tensors import Geometry, flat_storage, pointer, row_of


class _Box:
    """What autograd holds in place of a saved tensor."""

    __slots__ = ("geometry", "packed", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor
        self.geometry: Geometry | None = None
        self.packed: Packed | None = None

    def get(self) -> Tensor:
        if self.packed is None or self.geometry is None:
            assert self.tensor is not None
            return self.tensor
        return self.geometry.of(self.packed.back())


@contextmanager
def compressing(
    module: nn.Module, name: Slot, how: Treatment, quantizer: Quantizer
) -> Iterator[None]:
    """Around a forward of *module*, called *name*."""
    boxes: list[_Box] = []

    def boxed(tensor: Tensor) -> _Box:
        box = _Box(tensor)
        boxes.append(box)
        return box

    with saved_tensors_hooks(boxed, _Box.get):
        yield
    kept = [box for box in boxes if box.tensor is not None and not _own(module, box)]
    _settle(kept, name, how, quantizer)


def _own(module: nn.Module, box: _Box) -> bool:
    """Whether it is a parameter or a buffer of *module*, or autocast's copy of one."""
    tensor = box.tensor
    assert tensor is not None, "it was just saved"
    held = [*module.parameters(), *module.buffers()]
    if pointer(tensor) in {pointer(one) for one in held}:
        return True
    if tensor.dim() < 2 or not torch.is_autocast_enabled(tensor.device.type):
        return False
    return sorted(tensor.shape) in [sorted(one.shape) for one in held]


def _settle(
    boxes: Collection[_Box],
    name: Slot,
    how: Treatment,
    quantizer: Quantizer,
) -> None:
    """Pack each storage once: all are alive until now, so that none is another's."""
    found: dict[int, Packed] = {}
    for box in boxes:
        tensor = box.tensor
        assert tensor is not None, "it was just saved"
        where = pointer(tensor)
        if not tensor.is_floating_point():
            continue
        flat = flat_storage(tensor.detach())
        if flat.numel() < GROUP:
            continue
        if where not in found:
            slot = name, len(found)
            found[where] = quantizer.pack(slot, flat, row_of(tensor), how)
        box.packed, box.geometry = found[where], Geometry(tensor)
    for box in boxes:
        if box.packed is not None:
            box.tensor = None


def compress_module(
    module: nn.Module, how: Treatment, quantizer: Quantizer, name: Slot = ""
) -> None:
    """Let what *module* saves for backward be packed from now on: its instance's
    `forward` is replaced, and no name changes."""
    plain = module.forward

    def forward(*given: object, **named: object) -> object:
        if not torch.is_grad_enabled():
            return plain(*given, **named)
        with compressing(module, name, how, quantizer):
            return plain(*given, **named)

    module.forward = forward
