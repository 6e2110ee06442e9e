"""What a rank wants of a checkpoint, held against what is in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from profiles.documents import shown
from profiles.errors import Contradiction, InvalidFile
from runtime.checkpoint_state import (
    MODEL,
    OPTIMIZER,
    AnyOptimizer,
    Held,
    buffers,
    fresh_state,
    held,
)

Kinds = dict[str, tuple[torch.Size, torch.dtype]]


class Wanted:
    """`pairs`: a tensor's name in the checkpoint, and the tensor that it goes into."""

    def __init__(self, path: Path, found: Metadata, tied: Mapping[str, str]) -> None:
        self.found = found
        self.pairs: list[tuple[str, Tensor]] = []
        self._name, self._tied = f"checkpoint {shown(path)}", tied
        self._entries = {
            name: entry
            for name, entry in found.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def model(self, parts: Sequence[nn.Module], optimizer: AnyOptimizer | None) -> None:
        """Parameters and buffers; raises Contradiction for those of another model."""
        ours = [*buffers(parts)]
        ours += [(one.name, one.value()) for one in held(parts, optimizer)]
        for name, value in ours:
            stored = self._entries.get(f"{MODEL}{self._stored(name)}")
            if stored is None:
                raise Contradiction(
                    f"{self._name} has no {name}; it is of another model, or tensors "
                    "of it are missing"
                )
            if stored.size != value.shape:
                raise Contradiction(
                    f"{self._name} is of another model: {name} has shape "
                    f"{tuple(stored.size)} in it and {tuple(value.shape)} here"
                )
            self.pairs.append((f"{MODEL}{self._stored(name)}", value))

    def states(self, ours: Sequence[Held], torchs: torch.optim.Optimizer) -> None:
        """The optimizer's state; raises InvalidFile where some of it is missing."""
        saved = self._kinds()
        every = {kind for kinds in saved.values() for kind in kinds}
        for one in ours:
            name = self._stored(one.name)
            kinds = saved.get(name, {})
            if one.key is None:
                continue
            if kinds and kinds.keys() != every:
                missing = sorted(every - kinds.keys())[0]
                raise InvalidFile(f"{self._name} is damaged: {name} has no {missing}")
            for kind, (size, _) in kinds.items():
                if size not in (one.parameter.shape, ()):
                    raise InvalidFile(
                        f"{self._name} is damaged: {kind} of {name} has shape "
                        f"{tuple(size)}, the parameter {tuple(one.parameter.shape)}"
                    )
            for kind, value in fresh_state(torchs, one, kinds).items():
                self.pairs.append((f"{OPTIMIZER}{name}.{kind}", value))

    def _stored(self, name: str) -> str:
        """The name that a parameter is saved under: its own, or that of its twin."""
        own = f"{MODEL}{name}" in self._entries
        return name if own else self._tied.get(name, name)

    def _kinds(self) -> dict[str, Kinds]:
        """By parameter, what was saved of its optimizer state."""
        saved: dict[str, Kinds] = defaultdict(dict)
        for name, entry in self._entries.items():
            if name.startswith(OPTIMIZER):
                parameter, _, kind = name.removeprefix(OPTIMIZER).rpartition(".")
                saved[parameter][kind] = entry.size, entry.properties.dtype
        return saved
