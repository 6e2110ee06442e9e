"""Activation checkpointing: what a layer's plan recomputes, recomputed.

The instance's `forward` is replaced, not the module wrapped, so that parameters keep
their names and `fully_shard`'s hooks stay outside.
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from costmodel.retention import CORE, EVERYTHING, Retention
from profiles.errors import Unsupported
from runtime.modules.decoder import Layer


def apply(layer: nn.Module, retention: Retention, *, dropout: bool) -> None:
    """Make *layer* recompute what *retention* says.

    Raises Unsupported for anything but nothing, the attention core or everything.
    """
    again = retention.recomputed
    if len(again) < len(retention.tensors) or again - {CORE, EVERYTHING}:
        raise Unsupported(
            "this layout recomputes, offloads or compresses tensors by name, which is "
            "priced but not carried out; recompute none, selective and full are"
        )
    if EVERYTHING in again:
        _redo(layer, dropout)
    elif CORE in again:
        assert isinstance(layer, Layer), "layers of the catalogue's decoder have a core"
        _redo(layer.attention.core, dropout=False)


def _redo(module: nn.Module, dropout: bool) -> None:
    module.forward = partial(
        checkpoint, module.forward, use_reentrant=False, preserve_rng_state=dropout
    )
