"""What a forward keeps for its backward, as autograd itself reports it."""

from __future__ import annotations

from profiles.measure.kernel import Kernel, Layer
from profiles.measure.tensors import Tensor


def saved_bytes(kernel: Kernel) -> float | None:
    """Bytes that one forward call saved, without its parameters; None for others.

    Two saved views of one storage are counted once. Every operand but those that are
    activations in training (the first, and the gated functions' second) stays anyway.
    """
    if not isinstance(kernel, Layer) or not kernel.passes:
        return None
    from torch.autograd.graph import saved_tensors_hooks

    operands = kernel.operands()
    stay = {one.data_ptr() for one in kernel.parameters(operands)}
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in stay:
            size = tensor.numel() * tensor.element_size()
            seen[tensor.data_ptr()] = max(size, seen.get(tensor.data_ptr(), 0))
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        kernel.function(*operands)
    return float(sum(seen.values()))
