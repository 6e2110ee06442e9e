"""`torch.compile` of each layer, as an option of a run.

The layer's `forward` is compiled, not the module: `fully_shard`'s hooks stay outside
(from PyTorch 2.12 on they would break the graph), and full recompute runs the compiled
layer again. Layers alike share one graph.

Left out, and refused:

    exchanges inside a layer   of tp, cp and experts: the compiler knows neither our
                               collectives nor when they are waited for
    split backwards            put work off to a later action
    treatment by operator      made again or moved inside a layer: the compiler fuses
                               the operators that its plan speaks of
    dropout                    compiled draws are others than PyTorch's own

A step that is recorded or listened to runs as it is: the compiler would pass a layer
that it first meets under a dispatch mode over for good.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from costmodel.combination import Combination
from costmodel.layout import Layout
from costmodel.schedule import schedule_called
from profiles.errors import Unsupported
from profiles.job import Job
from runtime.modules.decoder import decoder_of

Forward = Callable[[Tensor], Tensor]


def compile_layer(layer: nn.Module) -> None:
    """Let *layer* run compiled from now on; its parameters keep their names."""
    layer.forward = _either(layer.forward)


def require_compilable(layout: Layout, job: Job, device: str) -> None:
    """Raise Unsupported, with every reason and its remedy, where `compile_layer` does
    not do, or where *device*'s compiler is missing."""
    found = [*_reasons(layout, job), *_missing(device)]
    if found:
        raise Unsupported(f"--compile: {'; '.join(found)}; or leave --compile out")


def _either(plain: Forward) -> Forward:
    compiled = torch.compile(plain, dynamic=False)

    def forward(stream: Tensor) -> Tensor:
        watched = _get_current_dispatch_mode() is not None
        return plain(stream) if watched else compiled(stream)

    return forward


def _reasons(layout: Layout, job: Job) -> Iterator[str]:
    used, spec = Combination.of_layout(layout), decoder_of(job)
    for name in ("tp", "cp"):
        degree = getattr(used, name)
        if degree > 1:
            yield f"layers with {name} {degree} exchange tensors: plan with --{name} 1"
    if spec.moe is not None:
        yield f"{job.model} has layers of experts: choose a dense model"
    if schedule_called(layout.schedule).splits:
        yield (
            f"schedule {layout.schedule} splits backwards: choose 1f1b, gpipe, "
            "interleaved or chimera"
        )
    other = sorted(used.retentions - {"none", "full", "segments"})
    if other:
        yield (
            f"layers that are treated inside ({', '.join(other)}): choose recompute "
            "none, full or sqrt, without --offload activations"
        )
    if spec.dropout:
        yield f"dropout {spec.dropout:g}: set it to 0 in the model file"


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
