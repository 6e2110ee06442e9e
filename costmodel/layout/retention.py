"""`Retention`: what happens to each tensor that backward needs.

Named by saved tensor: kept (the default), recomputed, offloaded or compressed.
Presets after Korthikanti et al. (MLSys 2023): `selective` recomputes the core of
attention, `full` the whole layer from its input; `cheap-ops` after Yuan et al.
(ATC 2024): norms' and the activation function's outputs. `sqrt` makes several layers
again from one kept input (`costmodel.layout.checkpoint_segments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from profiles.errors import InvalidSpec, UnknownName, Unsupported
from profiles.models import Block, Kind, ModelGraph

EVERYTHING = "*"  # what is not named; made again: the whole layer but its input


BITS = (1, 2, 4, 8, 16)  # that a compressed element may have
RUNNING_BITS = 8


class Action(StrEnum):
    KEEP = "keep"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"
    COMPRESS = "compress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What is done with a tensor: `ratio` of it goes to `tier`, or keeps `bits`.

    Bits are of a range: of each group of elements, or one that is `running` over the
    steps (Mesa).
    """

    action: Action
    ratio: float = 1.0
    tier: str | None = None
    bits: int | None = None
    running: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise InvalidSpec(f"ratio={self.ratio} must be between 0 and 1")
        if self.action is Action.OFFLOAD and self.tier not in ("cpu", "nvme"):
            raise InvalidSpec(f"offload tier {self.tier!r} is not one of cpu, nvme")
        if self.action is Action.COMPRESS and self.bits not in BITS:
            allowed = ", ".join(map(str, BITS))
            raise InvalidSpec(f"bits={self.bits} is not one of {allowed}")
        if self.running and self.bits != RUNNING_BITS:
            raise InvalidSpec(
                f"a running range is of {RUNNING_BITS} bits, not {self.bits}; leave "
                "running out"
            )


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Treatments by tensor name; an empty mapping keeps everything."""

    tensors: Mapping[str, Treatment] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.tensors)))

    @cached_property
    def recomputed(self) -> frozenset[str]:
        """Names of tensors that are made again; `*` is all of them."""
        return frozenset(
            name
            for name, treatment in self.tensors.items()
            if treatment.action is Action.RECOMPUTE
        )

    def away(self, name: str) -> float:
        """The share of the kept tensor *name* that is offloaded; `*` is any other."""
        found = self._treated(name, Action.OFFLOAD)
        return found.ratio if found is not None else 0.0

    def compressed(self, name: str) -> Treatment | None:
        """How the tensor *name* is compressed, if it is; `*` is any other."""
        return self._treated(name, Action.COMPRESS)

    def _treated(self, name: str, action: Action) -> Treatment | None:
        found = self.tensors.get(name) or self.tensors.get(EVERYTHING)
        return found if found is not None and found.action is action else None

    @property
    def compresses(self) -> bool:
        return any(item.action is Action.COMPRESS for item in self.tensors.values())

    @property
    def tiers(self) -> frozenset[str]:
        """Where tensors are offloaded to."""
        treated = self.tensors.values()
        return frozenset(item.tier for item in treated if item.tier is not None)

    def share(self, name: str) -> float:
        """How much of the tensor *name* is made again."""
        found = self.tensors.get(name)
        again = found is not None and found.action is Action.RECOMPUTE
        return found.ratio if again and found else 0.0

    def document(self) -> dict[str, Any]:
        """The `retention` member of a layout file: each named tensor's treatment."""
        document: dict[str, Any] = {}
        for name, treatment in self.tensors.items():
            entry: dict[str, Any] = {"action": treatment.action.value}
            if treatment.ratio != 1:
                entry["ratio"] = treatment.ratio
            for key in ("tier", "bits"):
                if getattr(treatment, key) is not None:
                    entry[key] = getattr(treatment, key)
            if treatment.running:
                entry["running"] = True
            document[name] = entry
        return document


KEEP_ALL = Retention()
PRESETS = ("none", "selective", "cheap-ops", "full", "sqrt")
AUTO = "auto"  # chosen by what fits
LATER = (AUTO,)
CORE = "attention_core"  # scores and row statistics, inside the attention operator


def recompute(*names: str, shares: Mapping[str, float] | None = None) -> Retention:
    """What makes *names* again, of some just *shares*, and keeps the rest."""
    some = shares or {}
    return Retention(
        tensors={
            name: Treatment(action=Action.RECOMPUTE, ratio=some.get(name, 1.0))
            for name in sorted(set(names))
        }
    )


def preset(name: str, block: Block) -> Retention:
    """The retention that the preset *name* means for *block*.

    `sqrt` is `full` for the layer at which a segment begins
    (`costmodel.layout.checkpoint_segments`). A comma-separated list of operators
    recomputes just those; of `mlp_up=0.5` half. Raises UnknownName, and InvalidSpec
    for a share that is not one.
    """
    if name == "none":
        return KEEP_ALL
    if name in ("full", "sqrt"):
        return recompute(EVERYTHING)
    if name == "selective":
        return recompute(CORE)
    if name == "cheap-ops":
        return recompute(*_cheap(block))
    if name in LATER:
        raise Unsupported(
            f"recompute {name} is not supported; choose one of "
            f"{', '.join(PRESETS)}, or operators by name"
        )
    known = {operator.name for operator in block.operators}
    return _listed(name, block, known)


def body_presets(name: str, graph: ModelGraph) -> dict[str, Retention]:
    """The retention that *name* means for each kind of numbered layer.

    A list may name operators that only some kinds have. Raises UnknownName.
    """
    blocks = graph.kinds
    if name in (*PRESETS, *LATER):
        return {kind: preset(name, block) for kind, block in blocks.items()}
    known = {item.name for block in blocks.values() for item in block.operators}
    return {kind: _listed(name, block, known) for kind, block in blocks.items()}


def _listed(name: str, block: Block, known: Set[str]) -> Retention:
    """The operators that *name* lists, each maybe with its share, where *block* has
    them; raises UnknownName for one that is not *known*."""
    parts = [part.strip().partition("=") for part in name.split(",")]
    wanted = [operator for operator, _, _ in parts]
    own = {operator.name for operator in block.operators}
    for part in wanted:
        if part not in known:
            raise UnknownName(
                "recompute preset or operator",
                part,
                [*PRESETS, *LATER, *sorted(known)],
            )
    shares = {
        _remade(block, operator): _share(operator, text)
        for operator, _, text in parts
        if text and operator in own
    }
    here = [part for part in wanted if part in own]
    return recompute(*(_remade(block, part) for part in here), shares=shares)


def require_priced(retention: Retention, block: Block) -> None:
    """Raise UnknownName for tensors that nobody saves, InvalidSpec for a share of a
    layer's input that is made again."""
    known = {EVERYTHING, CORE}
    for operator in block.operators:
        known |= {operator.output.name, *(item.name for item in operator.saves)}
    if block.entry is not None:
        known.add(block.entry.name)
    for name, treatment in retention.tensors.items():
        if name not in known:
            raise UnknownName(f"tensor of a {block.name} layer", name, known)
        if block.entry is not None and name == block.entry.name:
            _require_whole(name, treatment)


def _require_whole(name: str, treatment: Treatment) -> None:
    if treatment.action is Action.RECOMPUTE and treatment.ratio != 1:
        raise InvalidSpec(
            f"{name}, a layer's input, is recomputed whole or not at all, not a share "
            f"of {treatment.ratio:g}"
        )


def _share(operator: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found <= 1:
        raise InvalidSpec(f"recompute {operator}={text}: a share is above 0, up to 1")
    return found


def _remade(block: Block, operator: str) -> str:
    found = block.operator(operator)
    return CORE if found.kind is Kind.ATTENTION else found.output.name


def operator_of(tensor: str) -> str:
    """The operator that makes *tensor* again, as `--recompute` names it."""
    return Kind.ATTENTION.value if tensor == CORE else tensor.removesuffix("_out")


def _cheap(block: Block) -> list[str]:
    norms = [item for item in block.operators if item.name.endswith("_norm")]
    active = [
        item
        for item in block.operators  # but where its gradient is of what it makes
        if item.name == "activation" and item.output not in item.saves
    ]
    return [item.output.name for item in (*norms, *active)]
