"""Which products of experts are one kernel, in the executor and when timed."""

from __future__ import annotations

from functools import cache
from typing import Final

from profiles.measure.timing.tasks import Device, Tensor

ALIGNMENT: Final = 16  # bytes: of grouped operands' rows and of where they begin
MOST_GROUPS: Final = 1023
HOPPER, BLACKWELL = 9, 10  # compute capabilities whose kernel needs no counts here


def grouped_fits(rows: Tensor, weight: Tensor) -> bool:
    """Whether `torch.nn.functional.grouped_mm` takes *rows* (rows, in), sorted by
    expert, and *weight* (experts, out, in), and needs no counts on the host."""
    import torch

    if len(rows) < 2 or len(weight) > MOST_GROUPS:  # a single row has any stride
        return False
    if rows.is_cuda and (
        rows.dtype is not torch.bfloat16
        or capability(rows.device) not in (HOPPER, BLACKWELL)
    ):
        return False
    size = rows.itemsize
    sides = (*weight.shape[1:], rows.storage_offset(), weight.storage_offset())
    whole = not any(side * size % ALIGNMENT for side in sides)
    alike = rows.dtype is weight.dtype and rows.dtype is not torch.float64
    return bool(whole and alike and rows.is_contiguous() and weight.is_contiguous())


@cache
def capability(device: Device) -> int:
    """The major compute capability of a CUDA *device*."""
    import torch

    return torch.cuda.get_device_capability(device)[0]
