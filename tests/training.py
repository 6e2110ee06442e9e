"""Training by layouts, for tests: the cases of `training_cases` on gloo ranks.

The ranks of a world take all cases of their number one after another.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from costmodel.layout import Layout
from costmodel.uniform import Uniform, spell_out
from profiles.job import Job
from tests.runtime.ranks import on_ranks
from tests.training_cases import BATCH, choice_of, job

STEPS = 10
SEED, DATA_SEED, RATE, CLIP = 7, 3, 1e-3, 0.5


WHOLE = ((0,),)  # one chunk, on one rank


def reference(
    family: str, parts: tuple[tuple[int, ...], ...] = WHOLE
) -> dict[str, Any]:
    """The same training in plain PyTorch: one process, no layout, no trainer.

    Experts of a fixed capacity take as much of each of the *parts* of a sequence, as
    `parts_of` says them.
    """
    import torch

    from runtime.data.source import source
    from runtime.initialise import initialise
    from runtime.modules.decoder import Stage, decoder_of

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
    groups: list[dict[str, Any]] = [
        {"params": [one for one in named.values() if one.dim() > 1]},
        {
            "params": [one for one in named.values() if one.dim() <= 1],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=RATE,
        betas=(0.9, 0.95),
        weight_decay=0.1,
    )
    data = source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED)
    losses, gradients, norms = [], {}, []
    for step in range(STEPS):
        batch = data.sequences(step * BATCH, BATCH)
        loss = model_(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(named.values(), CLIP)))
        if not step:
            gradients = {name: _gradient(one) for name, one in named.items()}
        optimizer.step()
        losses.append(float(loss.detach()))
    return {
        "losses": losses,
        "norm": norms[0],
        "gradients": gradients,
        "parameters": {name: one.detach().clone() for name, one in named.items()},
    }


def drop_by_parts(model_: Any, parts: tuple[tuple[int, ...], ...]) -> None:
    """Let experts take of each part of a sequence as of a whole one."""
    import torch

    from runtime.modules.experts import ExpertMlp
    from runtime.modules.sent_rows import Routed, Sent, within_capacity

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


def trained(family: str, choice: Uniform, *, compiled: bool = False) -> dict[str, Any]:
    """What this rank saw of *choice*, as `trained_as`."""
    asked = job(family)
    layout = spell_out(choice, asked.graph, BATCH)
    return trained_as(asked, layout, compiled=compiled)


def trained_as(asked: Job, layout: Layout, *, compiled: bool = False) -> dict[str, Any]:
    """What this rank saw: losses, first gradients and final parameters, whole."""
    import torch

    from runtime.data.source import source
    from runtime.optimizer import Settings
    from runtime.trainer import Trainer

    trainer = Trainer(
        asked,
        layout,
        source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED),
        settings=Settings(lr=RATE, clip=CLIP),
        seed=SEED,
        device=torch.device("cpu"),
        compiled=compiled,
    )
    first = trainer.step(0, record=True)
    gradients = whole(trainer, trainer.gradients())
    losses = [first.loss] + [trainer.step(number).loss for number in range(1, STEPS)]
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


def seen_by_all(
    world: int, cases: list[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, Any]]:
    """What the ranks of each case saw, the pipeline's parts put together."""
    ranks = on_ranks(world, _every_case, cases)
    found = {}
    for case in cases:
        seen = [rank["-".join(case)] for rank in ranks]
        together = dict(seen[0])
        for part in ("gradients", "parameters"):
            together[part] = {k: one for rank in seen for k, one in rank[part].items()}
        together["recorded"] = [rank["recorded"] for rank in seen]
        found[case] = together
    return found


def _every_case(rank: int, cases: list[tuple[str, str]]) -> dict[str, Any]:
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    return {
        f"{family}-{name}": trained(family, choice_of(family, name))
        for family, name in cases
    }


def apart(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Relative L2 distance over all tensors together."""
    assert wanted.keys() <= found.keys()
    away = sum(float(((found[name] - one) ** 2).sum()) for name, one in wanted.items())
    size = sum(float((one**2).sum()) for one in wanted.values())
    return float((away / size) ** 0.5)
