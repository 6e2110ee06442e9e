"""Bits of compressed activations shared out while training goes on, by sensitivity.

Each saved tensor in turn is kept in one bit, twice, and all others in eight; how far
the gradients of a batch move says what its bits are worth (`runtime.remat`'s
`bit_allocation`). Together they have as many as the layout gives them. All ranks take
part at once, and choose alike: pipelines, shards and replicas too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from costmodel.layout import Action, Layout
from runtime.remat import EXACT_BITS, Quantizer, allocated, sensitivity
from runtime.train.trainer import Trainer

INTERVAL: Final = 1000  # steps after which they are shared out anew (GACT)
Key = tuple[int, Hashable]  # the stage, and what its quantizer calls a tensor


def compresses(layout: Layout) -> bool:
    """Whether it keeps tensors in bits that can be shared out: of groups."""
    treated = (one for p in layout.plans for one in p.retention.tensors.values())
    return any(one.action is Action.COMPRESS and not one.running for one in treated)


@dataclass(kw_only=True)
class ActivationBits:
    """What `trainer`'s saved tensors have, by stage, layer and name, and how many
    elements they are."""

    trainer: Trainer
    bits: dict[Key, int] = field(default_factory=dict)
    sizes: dict[Key, int] = field(default_factory=dict)
    _since: int | None = None

    def share_out(self, step: int) -> bool:
        """Before *step*: choose anew where that is due; whether it was."""
        if self._since is not None and step < self._since + INTERVAL:
            return False
        self._since = step
        given = self._given(step)
        exact = self.gradients(step, dict.fromkeys(given, EXACT_BITS), draw=0)
        worth = {key: self._worth(step, key, given, exact) for key in given}
        total = sum(size * bits for size, bits in given.values())
        self.sizes = {key: size for key, (size, _) in given.items()}
        self.bits = allocated(self.sizes, worth, total)
        self.settle()
        return True

    def settle(self) -> None:
        """Train with what is chosen."""
        self._choose(self.bits)
        for one in self._quantizers.values():
            one.generator = None
        self.trainer.forget()

    def gradients(
        self, step: int, bits: Mapping[Key, int], *, draw: int
    ) -> dict[str, Tensor]:
        """Of *step*, with tensors in *bits* where they have some; as *draw* falls."""
        self._choose(bits)
        for one in self._quantizers.values():
            device = self.trainer.device
            one.generator = torch.Generator(device).manual_seed(draw)
        return self.trainer.trial(step)

    def document(self) -> list[dict[str, Any]]:
        """For the run's result."""
        return [
            {"stage": stage, "tensor": str(slot), "bits": bits}
            for (stage, slot), bits in self.bits.items()
        ]

    @property
    def words(self) -> str:
        """How many tensors have how many bits."""
        counts = Counter(self.bits.values())
        each = (f"{count} in {bits}" for bits, count in sorted(counts.items()))
        return f"bits of saved tensors: {', '.join(each)}"

    @property
    def _quantizers(self) -> dict[int, Quantizer]:
        return {held.index: held.quantizer for held in self.trainer.stages}

    def _given(self, step: int) -> dict[Key, tuple[int, int]]:
        """Elements of each tensor of all ranks, the most that one holds, and the bits
        that the layout gives it."""
        self.gradients(step, {}, draw=0)
        own = {
            (stage, slot): pair
            for stage, one in self._quantizers.items()
            for slot, pair in one.packs.items()
        }
        every: list[Any] = [own]
        if dist.get_world_size() > 1:
            every = [None] * dist.get_world_size()
            dist.all_gather_object(every, own)
        found: dict[Key, tuple[int, int]] = {}
        for some in every:
            for key, pair in some.items():
                found[key] = max(found.get(key, (0, 0)), pair)
        return dict(sorted(found.items(), key=lambda item: str(item[0])))

    def _worth(
        self,
        step: int,
        key: Key,
        given: Mapping[Key, object],
        exact: dict[str, Tensor],
    ) -> float:
        bits = {**dict.fromkeys(given, EXACT_BITS), key: 1}
        one, two = (self.gradients(step, bits, draw=draw) for draw in (1, 2))
        away = self.trainer.distance
        return sensitivity(away(one, two), away(one, exact), away(two, exact))

    def _choose(self, bits: Mapping[Key, int]) -> None:
        for stage, one in self._quantizers.items():
            one.chosen = {slot: n for (at, slot), n in bits.items() if at == stage}
