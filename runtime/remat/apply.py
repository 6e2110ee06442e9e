"""What each layer's plan keeps for backward, recomputes, offloads or compresses.

    none                 nothing is done
    selective, full      `torch.utils.checkpoint` around attention's core, or the layer
    segments             around several layers
    anything by name     `steps`, the operators one by one; what they make is `kept`

The instance's `forward` is replaced, not the module wrapped, so that parameters keep
their names and `fully_shard`'s hooks stay outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from costmodel.layout import CORE, EVERYTHING, Action, Retention
from costmodel.support import ROUTED
from profiles.errors import Unsupported
from runtime.models import Layer, Stage
from runtime.offload import Tiers
from runtime.remat import layer_ops as steps
from runtime.remat.layer_ops import ENTRY
from runtime.remat.quantized_activations import Quantizer
from runtime.remat.saved_tensors import Away, Pass

Forward = Callable[[Tensor], Tensor]


class Passes:
    """The passes through a stage's layers: whose tensors to fetch after whose."""

    def __init__(self, away: Away) -> None:
        self._away = away
        self._latest: ReferenceType[Pass] | None = None

    def begin(self, stream: Tensor) -> Tensor:
        """A micro-batch comes to the stage."""
        self._latest = None
        return stream

    def next(self, retention: Retention, number: int) -> Pass:
        """It comes to layer *number* of the stage."""
        before = None if self._latest is None else self._latest()
        taken = Pass(retention, self._away, before, number)
        self._latest = ref(taken)
        return taken


def apply(
    stage: Stage,
    plans: Sequence[Retention],
    *,
    dropout: bool,
    device: torch.device,
    folder: Path | None = None,
) -> Quantizer:
    """Make the layers of *stage* do what *plans*, one for each numbered layer, say.

    What goes to a drive is in files of *folder*; what is compressed goes through the
    quantizer that is given back.

    Raises Unsupported for what is only priced.
    """
    for retention in plans:
        require_executable(retention)
    layers = list(stage.layers.values())
    away = Away(Tiers(device, folder), Quantizer())
    passes = Passes(away)
    parts = [
        _together(layers[first:end], plans[first:end], passes, dropout, first)
        for first, end in _runs(plans)
    ]
    stage.body = [passes.begin, *parts]
    return away.quantizer


def require_executable(retention: Retention) -> None:
    """Raise Unsupported for a treatment that no layer is given."""
    for name, treatment in retention.tensors.items():
        if treatment.action is Action.RECOMPUTE and treatment.ratio < 1:
            raise Unsupported(
                f"{name} is recomputed in part ({treatment.ratio:g}), which is priced "
                "but not executed; recompute it whole"
            )
        if treatment.action is Action.RECOMPUTE and name in ROUTED:
            raise Unsupported(
                f"{name} is recomputed by itself, which is simulated only; "
                "recompute its layer whole"
            )


def _runs(plans: Sequence[Retention]) -> Iterator[tuple[int, int]]:
    """Layers from the first to before the last that are recomputed together."""
    begins = [
        number
        for number, retention in enumerate(plans)
        if number == 0 or not {EVERYTHING, ENTRY} <= retention.recomputed
    ]
    yield from pairwise([*begins, len(plans)])


def _together(
    layers: Sequence[nn.Module],
    plans: Sequence[Retention],
    passes: Passes,
    dropout: bool,
    number: int,
) -> Forward:
    retention, layer = plans[0], layers[0]
    begin = partial(passes.next, retention, number)
    if len(layers) > 1:
        return _remade(nn.Sequential(*layers), retention, begin, dropout)
    if EVERYTHING in retention.recomputed:
        layer.forward = _remade(layer.forward, retention, begin, dropout)
    elif retention.recomputed == {CORE} and len(retention.tensors) == 1:
        assert isinstance(layer, Layer), "layers of the catalogue's decoder have a core"
        core = layer.attention.core
        core.forward = partial(  # type: ignore[method-assign]
            checkpoint,
            core.forward,
            use_reentrant=False,
            preserve_rng_state=dropout,
        )
    elif retention.tensors:
        assert isinstance(layer, Layer), "layers of the catalogue's decoder have steps"
        layer.forward = _stepwise(layer, begin)  # type: ignore[method-assign,assignment]
    return layer


def _remade(
    forward: Forward, retention: Retention, begin: Callable[[], Pass], dropout: bool
) -> Forward:
    """*forward*, run again in backward from its input: kept, moved or packed."""
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=dropout)
    treatment = retention.tensors.get(ENTRY)
    if treatment is None or treatment.action in (Action.KEEP, Action.RECOMPUTE):
        return partial(again, forward)

    def run(stream: Tensor) -> Tensor:
        taken = begin()
        given = taken.source(taken.enter(ENTRY, stream))
        with taken.saving():
            made: Tensor = again(lambda: forward(*given()))
        return made

    return run


def _stepwise(layer: Layer, begin: Callable[[], Pass]) -> Forward:
    def run(stream: Tensor) -> Tensor:
        taken = begin()
        with taken.saving():
            return steps.run(layer, stream, taken)

    return run
