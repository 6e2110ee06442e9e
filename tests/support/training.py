"""Training for tests: by a layout on this rank, and by one process in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from profiles.models.job import Job
from runtime.optim.optimizer import Settings
from tests.support.training_cases import BATCH, WHOLE, Parts, choice_of, job

if TYPE_CHECKING:
    from runtime.train.trainer import Trainer

SEED, DATA_SEED = 7, 3
ADAMW = Settings(lr=1e-3, clip=0.5)
# AdamW, and a norm that is clipped, hide a gradient of the right direction and the
# wrong size; SGD shows it in each tensor, from the first step on.
SGD = Settings(name="sgd", lr=0.5, clip=0.0)
STEPS = {ADAMW.name: 10, SGD.name: 4}
FEW_STEPS = (
    2  # what every run of the tests trains: the second with the first one's states
)


def trainer_of(
    layout: Layout,
    seed: int = SEED,
    drive: Path | None = None,
    budget_bytes: float | None = None,
) -> Trainer:
    """This rank's trainer of the small GPT by *layout*, on the CPU."""
    from runtime.data.sources import source
    from runtime.train.build import Setup
    from runtime.train.trainer import Trainer

    asked = job("gpt")
    return Trainer(
        asked,
        layout,
        source("synthetic", vocab=512, seq_len=asked.seq_len, seed=1),
        settings=Settings(),
        setup=Setup(
            seed=seed,
            device=torch.device("cpu"),
            offload_dir=drive,
            budget_bytes=budget_bytes,
        ),
    )


def trainer_of_case(name: str) -> Trainer:
    """The same by the layout that a case is."""
    return trainer_of(spell_out(choice_of("gpt", name), job("gpt").graph, BATCH))


@cache
def reference(
    family: str,
    settings: Settings = ADAMW,
    parts: Parts = WHOLE,
    steps: int | None = None,
) -> dict[str, Any]:
    """The same training in plain PyTorch: one process, no layout, no trainer.

    Experts of a fixed capacity take as much of each of the *parts* of a sequence, as
    `parts_of` says them.
    """
    from runtime.data.sources import source
    from runtime.models.decoder import Stage, decoder_of, initialise

    asked = job(family)
    spec = decoder_of(asked)
    names = asked.graph.layer_names
    with torch.device("meta"):
        model_ = Stage(spec, names)
    where = torch.device("cpu")
    initialise(model_, prefix="", layers=spec.layers, seed=SEED, device=where)
    model_.tie()
    drop_by_parts(model_, parts)
    named = dict(model_.named_parameters())
    start = {name: one.detach().clone() for name, one in named.items()}
    optimizer = _plain_optimizer(list(named.values()), settings)
    data = source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED)
    losses, gradients, norms = [], {}, []
    for step in range(steps or STEPS[settings.name]):
        batch = data.sequences(step * BATCH, BATCH)
        loss = model_(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        most = settings.clip or inf
        norms.append(float(torch.nn.utils.clip_grad_norm_(named.values(), most)))
        if not step:
            gradients = {name: _gradient(one) for name, one in named.items()}
        optimizer.step()
        losses.append(float(loss.detach()))
    return {
        "losses": losses,
        "norm": norms[0],
        "gradients": gradients,
        "parameters": {name: one.detach().clone() for name, one in named.items()},
        "start": start,
    }


def _plain_optimizer(
    parameters: Sequence[torch.nn.Parameter], settings: Settings
) -> torch.optim.Optimizer:
    """Matrices decay, vectors do not."""
    groups: list[dict[str, Any]] = [
        {"params": [one for one in parameters if one.dim() > 1]},
        {
            "params": [one for one in parameters if one.dim() <= 1],
            "weight_decay": 0.0,
        },
    ]
    if settings.name == "sgd":
        return torch.optim.SGD(groups, settings.lr, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(
        groups,
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
    )


def drop_by_parts(model_: Any, parts: Parts) -> None:
    """Let experts take of each part of a sequence as of a whole one."""
    from runtime.models.moe import ExpertMlp, Routed, Sent, within_capacity

    def by_parts(mlp: ExpertMlp, stream: Any, routed: Routed) -> Sent:
        batch, tokens, copies = routed.chosen.shape
        chunks = torch.arange(tokens).view(sum(map(len, parts)), -1)
        order = torch.cat([chunks[list(part)].flatten() for part in parts])

        def cut(whole: Any) -> Any:
            return whole[:, order].unflatten(1, (len(parts), -1)).flatten(0, 1)

        given = Routed(
            *(cut(getattr(routed, name)) for name in Routed.__dataclass_fields__)
        )
        most = mlp.capacity_of(tokens // len(parts))
        assert most is not None
        sent = within_capacity(cut(stream), given, most)
        back = order.argsort()
        places = sent.places.view(batch, tokens, copies)[:, back].flatten()
        weights = sent.weights.view(batch, tokens, copies)[:, back].flatten(0, 1)
        return Sent(sent.rows, None, places, weights)

    for mlp in model_.modules() if len(parts) > 1 else ():
        if isinstance(mlp, ExpertMlp):
            mlp.sent = partial(by_parts, mlp)  # type: ignore[method-assign]


def _gradient(parameter: Any) -> Any:
    assert parameter.grad is not None
    return parameter.grad.clone()


def trained(
    family: str,
    choice: Uniform,
    settings: Settings = ADAMW,
    *,
    compiled: bool = False,
    steps: int | None = None,
) -> dict[str, Any]:
    """What this rank saw of *choice*, as `trained_as`."""
    asked = job(family)
    layout = spell_out(choice, asked.graph, BATCH)
    return trained_as(asked, layout, settings, compiled=compiled, steps=steps)


def trained_as(
    asked: Job,
    layout: Layout,
    settings: Settings = ADAMW,
    *,
    compiled: bool = False,
    steps: int | None = None,
) -> dict[str, Any]:
    """What this rank saw: losses, first gradients and final parameters, whole."""
    from runtime.data.sources import source
    from runtime.train.build import Setup
    from runtime.train.trainer import Trainer

    trainer = Trainer(
        asked,
        layout,
        source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED),
        settings=settings,
        setup=Setup(seed=SEED, device=torch.device("cpu"), compiled=compiled),
    )
    first = trainer.step(0, record=True)
    gradients = whole(trainer, trainer.gradients())
    others = range(1, steps or STEPS[settings.name])
    losses = [first.loss, *(trainer.step(number).loss for number in others)]
    own = {
        name: parameter
        for stage in trainer.stages
        for name, parameter in stage.named_parameters()
    }
    return {
        "losses": losses,
        "norm": first.gradient_norm,
        "gradients": gradients,
        "parameters": {name: _full(value) for name, value in own.items()},
        "recorded": trainer.recorder.document(),
    }


def whole(trainer: Any, local: dict[str, Any]) -> dict[str, Any]:
    """Every gradient of this rank's stages, put together over its mesh."""
    from torch.distributed.tensor import DTensor

    found = {}
    for stage in trainer.stages:
        for name, parameter in stage.named_parameters():
            part = local[name]
            if isinstance(parameter, DTensor):
                part = DTensor.from_local(
                    part,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            found[name] = _full(part)
    return found


def _full(tensor: Any) -> Any:
    from torch.distributed.tensor import DTensor

    plain = tensor.detach()
    return (plain.full_tensor() if isinstance(plain, DTensor) else plain).clone()
