"""`load_weights`: a folder of Hugging Face's read by any layout, each rank its part.

To PyTorch's distributed checkpoint the folder is one more storage: it asks for pieces
of our parameters, and the bond that makes a parameter reads it, one at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from runtime.checkpoint import MODEL, Wanted, held, read_wanted
from runtime.optim import Optimizer
from runtime.weights.folder import WeightsFolder
from runtime.weights.names import Bond


def load_weights(
    folder: WeightsFolder, parts: Sequence[nn.Module], optimizer: Optimizer | None
) -> None:
    """Put the weights in *folder* into *parts* and the masters of *optimizer*, whose
    states stay; every rank calls this at once.

    Raises InvalidFile for a file that cannot be read, Contradiction for weights of
    another model.
    """
    reader = _Reader(folder)
    name = f"--weights {folder.path}"
    wanted = Wanted(name, reader.read_metadata(), tied=folder.expected.aliases)
    wanted.model(parts, optimizer)
    read_wanted(wanted, reader)
    for one in held(parts, optimizer):
        one.publish()


class _Reader(StorageReader):
    def __init__(self, folder: WeightsFolder) -> None:
        self._folder = folder
        self._bonds = {
            name: bond for bond in folder.expected.bonds for name in bond.ours
        }

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between reads."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Our parameters, each in one piece."""
        entries: dict[str, Any] = {}
        for bond in self._folder.expected.bonds:
            for name, shape in bond.shapes().items():
                size = torch.Size(shape)
                origin = torch.Size([0] * len(shape))
                entries[f"{MODEL}{name}"] = TensorStorageMetadata(
                    properties=TensorProperties(dtype=torch.float32),
                    size=size,
                    chunks=[ChunkStorageMetadata(offsets=origin, sizes=size)],
                )
        return Metadata(state_dict_metadata=entries)

    def set_up_storage_reader(self, *args: Any, **kwargs: Any) -> None:
        """The folder is read already, as far as names go."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Each bond once, whatever pieces of its parameters are wanted."""
        wanted: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            wanted[item.storage_index.fqn.removeprefix(MODEL)].append(item)
        last: tuple[Bond, dict[str, Tensor]] | None = None
        for name, items in wanted.items():
            bond = self._bonds[name]
            if last is None or last[0] is not bond:
                last = bond, self._made(bond)
            for item in items:
                _hand_over(last[1][name], item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _made(self, bond: Bond) -> dict[str, Tensor]:
        theirs = self._folder.tensors(bond.theirs)
        return dict(zip(bond.ours, bond.join(theirs), strict=True))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False  # it is not to be found by a name


def _hand_over(whole: Tensor, item: ReadItem, planner: LoadPlanner) -> None:
    piece = whole
    for dim, (first, size) in enumerate(
        zip(item.storage_offsets, item.lengths, strict=True)
    ):
        piece = piece.narrow(dim, first, size)
    target = planner.resolve_tensor(item).detach()
    target.copy_(piece)
    planner.commit_tensor(item, target)
