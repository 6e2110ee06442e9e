"""`torch.compile` of each layer, as an option of a run.

The layer's `forward` is compiled, not the module: `fully_shard`'s hooks stay outside
(from PyTorch 2.12 on they would break the graph), and full recompute runs the compiled
layer again. Layers alike share one graph.

What exchanges tensors stays out of the graphs and runs as it is, between them, since
the compiler knows neither our collectives nor when they are waited for:

    tp               products with their gathers, reductions and scatters (`_SEAMS`)
    cp               the core of attention
    experts          the MLP of experts, whose rows no graph knows the number of
    split backwards  products, which put work off to a later action

Left out, and refused:

    operators' shardings   run one by one, with what lies between them
    treatment by operator  made again or moved inside a layer: the compiler fuses the
                           operators that its plan speaks of
    dropout                compiled draws are others than PyTorch's own

A step that is recorded or listened to runs as it is: the compiler would pass a layer
that it first meets under a dispatch mode over for good.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from costmodel.layout import Layout
from costmodel.support import Combination
from profiles.errors import Unsupported
from profiles.models import Job, ModuleSpec
from runtime.models import ExpertMlp, decoder_of
from runtime.parallel import (
    ColumnLinear,
    GatheredCore,
    RingCore,
    RowLinear,
    SplitMlp,
    UlyssesCore,
)

# The method of each module that runs between graphs; an MLP's activation is in one.
_SEAMS: Final[dict[type[nn.Module], str]] = {
    ColumnLinear: "forward",
    RowLinear: "forward",
    SplitMlp: "inner",
    RingCore: "forward",
    GatheredCore: "forward",
    UlyssesCore: "forward",
    ExpertMlp: "forward",
}
Forward = Callable[[Tensor], Tensor]


def compile_layer(layer: nn.Module) -> None:
    """Let *layer* run compiled from now on; its parameters keep their names.

    Called when it is split and its products know whether to put work off.
    """
    for part in layer.modules():
        seam = _SEAMS.get(type(part))
        if seam is not None:
            setattr(part, seam, MethodType(_apart(getattr(type(part), seam)), part))
        elif isinstance(part, nn.Linear) and "forward" in vars(part):  # puts it off
            part.forward = torch.compiler.disable(part.forward)  # type: ignore[method-assign]
    layer.forward = _either(layer.forward)


def require_compilable(layout: Layout, job: Job, device: str) -> None:
    """Raise Unsupported, with every reason and its remedy, where `compile_layer` does
    not do, or where *device*'s compiler is missing."""
    if isinstance(job.spec, ModuleSpec):
        raise Unsupported("--compile is for the catalogue's layers; leave it out")
    found = [*_reasons(layout, job), *_missing(device)]
    if found:
        raise Unsupported(f"--compile: {'; '.join(found)}; or leave --compile out")


@cache
def _apart(method: Callable[..., Any]) -> Callable[..., Any]:
    """*method* outside of graphs: one function for all layers, which share graphs."""
    outside: Callable[..., Any] = torch.compiler.disable(method)
    return outside


def _either(plain: Forward) -> Forward:
    compiled = torch.compile(plain, dynamic=False)

    def forward(stream: Tensor) -> Tensor:
        watched = _get_current_dispatch_mode() is not None
        return plain(stream) if watched else compiled(stream)

    return forward


def _reasons(layout: Layout, job: Job) -> Iterator[str]:
    used, spec = Combination.of_layout(layout), decoder_of(job)
    if used.by_modules:
        yield ("per-operator shardings: leave the modules of the plans out")
    other = sorted(used.retentions - {"none", "full", "segments"})
    if other:
        yield (
            f"recompute or offload inside a layer ({', '.join(other)}): choose "
            "recompute none, full or sqrt, without --offload activations"
        )
    if spec.most_dropped:
        yield f"dropout {spec.most_dropped:g}: set it to 0 in the model file"


def _missing(device: str) -> Iterator[str]:
    if device == "cuda" and find_spec("triton") is None:
        yield "the package triton is not installed here, which compiles for CUDA"
    named, usual = ("CC", ("gcc", "clang")) if device == "cuda" else ("CXX", ("g++",))
    asked = os.environ.get(named)
    commands = (asked,) if asked else usual
    if not any(map(shutil.which, commands)):
        yield (
            f"no compiler is found here as {' or '.join(commands)}: install one, or "
            f"name it by {named}"
        )
