"""`Arena`: operands that no cache holds.

Training comes back to a weight or a saved activation after it has touched everything
else. Here one block of memory larger than the last cache is dealt out piece by piece,
and by the time a piece is dealt again the cache has forgotten it. The numbers in it
are normal, so that no denormal slows a product down, and nothing may change them:
`gelu` of numbers ten thousand times as large takes twice as long. What is summed up in
place has a blank arena, of zeros, which stay what they are.
"""

from __future__ import annotations

from math import prod

from profiles.measure.timing.tasks import Device, DType, Tensor
from profiles.units import MiB

BLOCK_BYTES = 8 * MiB  # below glibc's largest threshold: from the heap
LINE = 64  # elements between pieces: no two share a cache line


class Arena:
    """Deals tensors of one dtype out of one block, round and round; *blank* ones are
    zeros."""

    def __init__(
        self, size: int, dtype: DType, device: Device, *, blank: bool = False
    ) -> None:
        import torch

        seed = torch.Generator().manual_seed(0)
        some = torch.randn(min(size, MiB), generator=seed).to(dtype)
        if blank:
            some.zero_()
        self.block = some.repeat(-(-size // len(some)))[:size].to(device)
        self.used = 0

    @property
    def bytes(self) -> int:
        return self.block.numel() * self.block.element_size()

    def deal(self, *shape: int) -> Tensor:
        """The next piece, as a contiguous tensor of *shape*; larger ones are made."""
        size = prod(shape)
        if size > len(self.block):
            return self.block.new_zeros(shape)
        if self.used + size > len(self.block):
            self.used = 0
        piece = self.block[self.used : self.used + size].view(shape)
        self.used += -(-size // LINE) * LINE
        return piece

    def leaf(self, *shape: int, wanted: bool = True) -> Tensor:
        """A piece that a gradient is *wanted* for."""
        return self.deal(*shape).detach().requires_grad_(wanted)

    def numbers(self, below: int, count: int) -> Tensor:
        """*count* random whole numbers: tokens, or targets."""
        import torch

        return torch.randint(below, (count,), device=self.block.device)

    def forget(self, size_bytes: float) -> None:
        """Read so much of the block that the caches hold nothing else."""
        size = min(int(size_bytes / self.block.element_size()), len(self.block))
        piece = self.deal(size)
        if piece.element_size() == 1:  # 8-bit floats have no sum
            import torch

            piece = piece.view(torch.uint8)
        piece.sum()


def touch_heap(size_bytes: float) -> None:
    """Make so much of the allocator's memory present, as it is once training runs.

    A page's first touch costs microseconds, in a virtual machine tens of them; training
    pays that in its first steps only.
    """
    import torch

    count = int(size_bytes // BLOCK_BYTES)
    blocks = [torch.ones(BLOCK_BYTES, dtype=torch.uint8) for _ in range(count)]
    blocks.clear()
