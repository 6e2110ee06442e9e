"""A rank's part of the training state, as tensors with names of the whole model.

    model.<parameter>               its value: the fp32 master, where there is one
    model.<buffer>
    optimizer.<parameter>.<state>   exp_avg, exp_avg_sq, step …

What is sharded is a DTensor, so that another layout can read its own part. Names are
those of the whole model, whichever rank or stage holds them.

What a rank wants of a checkpoint, held against what is in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from profiles.errors import Contradiction, InvalidFile, Unsupported
from runtime.checkpoint.side_by_side import InOrder, SideBySide
from runtime.optim import Leaf, Optimizer, local

MODEL, OPTIMIZER = "model.", "optimizer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A parameter of this rank, and what the optimizer updates for it, if there is
    one."""

    name: str
    parameter: Tensor
    leaf: Leaf | None
    order: SideBySide | None = None  # of its parts

    def value(self) -> Tensor:
        """What is saved and loaded, sharing storage with what trains."""
        if self.leaf is not None and self.leaf.master:
            return self.part(self.leaf.value.detach())
        return self.part(self.parameter.detach())

    def part(self, value: Tensor) -> Tensor:
        """A local tensor like its shard, as the same part of a whole one."""
        part = as_part(value, self.parameter)
        if self.order is None or not isinstance(part, DTensor):
            return part
        return InOrder.of(part, self.order)

    @torch.no_grad()
    def whole(self) -> Tensor:
        """All of the working weight; every rank that has a part calls this at once."""
        own = self.parameter.detach()
        if not isinstance(own, DTensor):
            return own
        found = own.full_tensor()
        return found if self.order is None else self.order.in_order(found)

    @torch.no_grad()
    def publish(self) -> None:
        """After a load: the working weight from its master."""
        if self.leaf is not None:
            self.leaf.publish()


def held(parts: Sequence[nn.Module], optimizer: Optimizer | None = None) -> list[Held]:
    """Each parameter of *parts*; those of one name are copies, which train alike."""
    leaves = {id(one.parameter): one for one in optimizer.leaves} if optimizer else {}
    return [
        Held(
            name=name,
            parameter=one,
            leaf=leaves.get(id(one)),
            order=getattr(part, "side_by_side", {}).get(name),
        )
        for part in parts
        for name, one in part.named_parameters()
    ]


def ties(parts: Sequence[nn.Module]) -> dict[str, str]:
    """Second names of parameters that have two, and the name they are saved under."""
    second: dict[str, str] = {}
    for part in parts:
        names = {id(one): name for name, one in part.named_parameters()}
        for name, one in part.named_parameters(remove_duplicate=False):
            if names[id(one)] != name:
                second[name] = names[id(one)]
    return second


def buffers(parts: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Persistent buffers; raises Unsupported for other state that modules keep."""
    for part in parts:
        parameters = {name for name, _ in part.named_parameters(remove_duplicate=False)}
        for name, value in part.state_dict().items():
            if name in parameters:
                continue
            if not isinstance(value, Tensor):
                raise Unsupported(
                    f"{name} is module state that is no tensor; checkpoints hold "
                    "parameters and buffers"
                )
            yield name, value


def written(
    parts: Sequence[nn.Module], optimizer: Optimizer | None
) -> dict[str, Tensor]:
    """The tensors of this rank's part, by name; nothing is copied."""
    state = {f"{MODEL}{name}": value for name, value in buffers(parts)}
    for one in held(parts, optimizer):
        state[f"{MODEL}{one.name}"] = one.value()
        if optimizer is None or one.leaf is None:
            continue
        for kind, value in optimizer.inner.state.get(one.leaf.value, {}).items():
            if isinstance(value, Tensor):
                state[f"{OPTIMIZER}{one.name}.{kind}"] = one.part(value)
    return state


def as_part(value: Tensor, parameter: Tensor) -> Tensor:
    """A local tensor like a parameter's shard, as the same part of a whole one.

    Scalars such as AdamW's step count are the same on every rank.
    """
    if not isinstance(parameter, DTensor) or isinstance(value, DTensor):
        return value
    if value.dim() != parameter.dim():
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    if value.device.type == mesh.device_type:
        return DTensor.from_local(
            value,
            mesh,
            placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
    # On the host, of ranks that are on devices: `from_local` would move it there.
    kind = TensorMeta(parameter.shape, parameter.stride(), value.dtype)
    spec = DTensorSpec(mesh, placements, tensor_meta=kind)
    return DTensor(value, spec, requires_grad=False)


def fresh_state(
    torchs: torch.optim.Optimizer,
    parameter: Tensor,
    key: Tensor,
    kinds: Mapping[str, tuple[torch.Size, torch.dtype]],
) -> dict[str, Tensor]:
    """Storage for a parameter's optimizer state, which is that of *key*, of the *kinds*
    that were saved.

    What the optimizer has of them (on a drive, say) takes the saved values itself;
    it may have nothing before its first step.
    """
    flags = torchs.param_groups[0]  # as torch.optim: groups differ in numbers only
    on_device = flags.get("fused") or flags.get("capturable")
    device = local(key).device if on_device else torch.device("cpu")
    had = torchs.state.get(key, {})
    state = {}
    for kind, (size, dtype) in kinds.items():
        if size == parameter.shape and size:
            like = key.detach()
            fits = kind in had and (had[kind].shape, had[kind].dtype) == (
                like.shape,
                dtype,
            )
            state[kind] = had[kind] if fits else torch.zeros_like(like, dtype=dtype)
        else:
            state[kind] = torch.zeros(size, dtype=dtype, device=device)
    torchs.state[key] = state
    return state


Kinds = dict[str, tuple[torch.Size, torch.dtype]]


class Wanted:
    """`pairs`: a tensor's name in the checkpoint, and the tensor that it goes into."""

    def __init__(self, name: str, found: Metadata, tied: Mapping[str, str]) -> None:
        self.found = found
        self.pairs: list[tuple[str, Tensor]] = []
        self.name, self._tied = name, tied
        self._entries = {
            name: entry
            for name, entry in found.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }

    def model(self, parts: Sequence[nn.Module], optimizer: Optimizer | None) -> None:
        """Parameters and buffers; raises Contradiction for those of another model."""
        ours = [*buffers(parts)]
        ours += [(one.name, one.value()) for one in held(parts, optimizer)]
        for name, value in ours:
            stored = self._entries.get(f"{MODEL}{self._stored(name)}")
            if stored is None:
                raise Contradiction(
                    f"{self.name} has no {name}; it is of another model, or tensors "
                    "of it are missing"
                )
            if stored.size != value.shape:
                raise Contradiction(
                    f"{self.name} is of another model: {name} has shape "
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
            if one.leaf is None:
                continue
            if kinds and kinds.keys() != every:
                missing = sorted(every - kinds.keys())[0]
                raise InvalidFile(f"{self.name} is damaged: {name} has no {missing}")
            for kind, (size, _) in kinds.items():
                if size not in (one.parameter.shape, ()):
                    raise InvalidFile(
                        f"{self.name} is damaged: {kind} of {name} has shape "
                        f"{tuple(size)}, the parameter {tuple(one.parameter.shape)}"
                    )
            for kind, value in fresh_state(
                torchs, one.parameter, one.leaf.value, kinds
            ).items():
                self.pairs.append((f"{OPTIMIZER}{name}.{kind}", one.part(value)))

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
