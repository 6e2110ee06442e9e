"""One block's saved tensors by integer program: keep, make again, offload or compress.

    minimise    Σ run_o · seconds of o's forward  +  wait_F + wait_B
                + Σ pack_t,b · seconds of packing t in b bits, and back
    subject to  keep_t + again_t + away_t + Σ_b pack_t,b = 1      each saved tensor t
                again_t ≤ run_o                                   o makes t
                run_o ≤ run_p         p makes an input of o that nobody keeps
                flying · Σ (keep_t · size_t + pack_t,b · packed_t,b)
                + Σ again_t · size_t + whole  ≤  room
                whole ≥ pack_t,b · size_t             unpacked one at a time
                wait ≥ Σ away_t · size_t / link − pass            forward, backward

run_o, again_t and pack_t,b are 0 or 1, a tensor may be away in part. `flying` is how
many micro-batches are in flight; what is made again is there once, in its layer's
backward.
Checkmate's idea (Jain et al., MLSys 2020) for one block whose operators run again at
most once, with POFO's channel (Beaumont et al., NeurIPS 2021) beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.layout import Action, Retention, Treatment
from costmodel.machine import ASSUMED, LaunchFloor
from costmodel.operators import OperatorPrice, Packer, packable
from costmodel.simulation import remade
from profiles.models import Block
from tests.support.milp import Milp, MilpSolution

NOTHING_OF: Final = 1e-6  # a share below this is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A block, its operators' prices, and what its saved tensors may take.

    `room_bytes` are for one such layer of a stage, `link_bytes_per_s` is 0 where
    nothing may leave; `pass_s` are the forward and the backward that hide copies.
    `packer` compresses activations in one of *bits*, where there is one.
    """

    block: Block
    prices: dict[str, OperatorPrice]
    room_bytes: float
    flying: float = 1.0
    link_bytes_per_s: float = 0.0
    pass_s: tuple[float, float] = (0.0, 0.0)
    floor: LaunchFloor = ASSUMED
    packer: Packer | None = None
    bits: tuple[int, ...] = (8, 4, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The retention, its additional seconds, and the bytes that stay in flight."""

    retention: Retention
    extra_s: float
    saved_bytes: float


def best_retention(asked: Question) -> Answer | None:
    """The retention that takes the least additional seconds; None if none fits."""
    found = _program(asked).solve()
    return _answer(asked, found) if found.values else None


def _program(asked: Question) -> Milp:
    model = Milp(name=f"retention of {asked.block.name}")
    makers = {item: one for one in asked.block.operators for item in remade(one)}
    sizes = saved_sizes(asked)
    seconds = forward_s(asked)
    for one in asked.block.operators:
        model.binary(f"run {one.name}", cost=seconds[one.name])
    for name in sizes:
        where = [(model.continuous(f"keep {name}", upper=1.0), 1.0)]
        if name in makers:
            again = model.binary(f"again {name}")
            where.append((again, 1.0))
            run = f"run {makers[name].name}"
            model.require(f"{name} is made", [(run, 1.0), (again, -1.0)], at_least=0.0)
        if asked.link_bytes_per_s > 0:
            where.append((model.continuous(f"away {name}", upper=1.0), 1.0))
        for way in packings(asked, name):
            where.append((model.binary(way.name, cost=way.extra_s), 1.0))
        model.require(f"{name} is somewhere", where, equals=1.0)
    _closed(asked, model, sizes)
    held = [(f"keep {name}", asked.flying * size) for name, size in sizes.items()]
    held += [(f"again {name}", size) for name, size in sizes.items() if name in makers]
    held += _packed(asked, model, sizes)
    model.require("fits", held, at_most=asked.room_bytes)
    if asked.link_bytes_per_s > 0:
        _copied(asked, model, sizes)
    return model


def _closed(asked: Question, model: Milp, sizes: dict[str, float]) -> None:
    """What runs again reads what is kept, or is made again too."""
    makers = {one.output.name: one.name for one in asked.block.operators}
    for one in asked.block.operators:
        for item in one.inputs:
            if item.name in makers and item.name not in sizes:
                pair = [(f"run {makers[item.name]}", 1.0), (f"run {one.name}", -1.0)]
                row = f"{one.name} reads {item.name}"
                model.require(row, pair, at_least=0.0)


def _packed(
    asked: Question, model: Milp, sizes: dict[str, float]
) -> list[tuple[str, float]]:
    """What packed tensors hold: all of them small, one of them whole again."""
    ways = [way for name in sizes for way in packings(asked, name)]
    if not ways:
        return []
    whole = model.continuous("whole")
    for way in ways:
        row = [(whole, 1.0), (way.name, -sizes[way.tensor])]
        model.require(f"{way.name} is unpacked", row, at_least=0.0)
    return [(whole, 1.0), *((way.name, asked.flying * way.held_bytes) for way in ways)]


def _copied(asked: Question, model: Milp, sizes: dict[str, float]) -> None:
    for name, hides_s in zip(("forward", "backward"), asked.pass_s, strict=True):
        wait = model.continuous(f"wait {name}", cost=1.0)
        row = [(wait, 1.0)]
        row += [
            (f"away {tensor}", -size / asked.link_bytes_per_s)
            for tensor, size in sizes.items()
        ]
        model.require(f"{name} hides copies", row, at_least=-hides_s)


def _answer(asked: Question, found: MilpSolution) -> Answer:
    sizes, treated, saved = saved_sizes(asked), {}, 0.0
    for one in asked.block.operators:
        for name in remade(one):
            if name not in sizes and found.values[f"run {one.name}"] > 0.5:
                treated[name] = Treatment(action=Action.RECOMPUTE)
    for name, size in sizes.items():
        saved += size * found.values[f"keep {name}"]
        if found.values.get(f"again {name}", 0.0) > 0.5:
            treated[name] = Treatment(action=Action.RECOMPUTE)
            continue
        for way in packings(asked, name):
            if found.values[way.name] > 0.5:
                treated[name] = way.treatment
                saved += way.held_bytes
        share = min(found.values.get(f"away {name}", 0.0), 1.0)
        if share > NOTHING_OF:
            away = Treatment(action=Action.OFFLOAD, ratio=share, tier="cpu")
            treated[name] = away
    return Answer(
        retention=Retention(tensors=treated), extra_s=found.value, saved_bytes=saved
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A tensor in fewer bits: what it then holds, and the seconds of both ways."""

    tensor: str
    treatment: Treatment
    held_bytes: float
    extra_s: float

    @property
    def name(self) -> str:
        return f"pack {self.tensor} in {self.treatment.bits}"


def packings(asked: Question, tensor: str) -> list[Packing]:
    """The ways to compress *tensor*, none where it is no activation handed on."""
    if asked.packer is None or tensor not in packable(asked.block):
        return []
    size, found = saved_sizes(asked)[tensor], []
    for bits in asked.bits:
        treatment = Treatment(action=Action.COMPRESS, bits=bits)
        kept = Retention(tensors={tensor: treatment})
        packed = asked.packer.packed({tensor: np.asarray(size)}, kept)
        found.append(
            Packing(
                tensor=tensor,
                treatment=treatment,
                held_bytes=size - _number(packed.saved_bytes),
                extra_s=2 * _number(packed.each_way.total_s(asked.floor)),
            )
        )
    return found


def saved_sizes(asked: Question) -> dict[str, float]:
    """Bytes of each tensor that backward needs, by name."""
    sizes: dict[str, Any] = {}
    for price in asked.prices.values():
        sizes |= price.saved | price.internal
    return {name: _number(size) for name, size in sizes.items() if _number(size) > 0}


def forward_s(asked: Question) -> dict[str, float]:
    """Seconds of each operator's forward, run again by itself."""
    return {
        name: _number(price.forward.total_s(asked.floor))
        for name, price in asked.prices.items()
    }


def _number(value: Any) -> float:
    return float(np.asarray(value).reshape(-1)[0])
