"""Ranks that train side by side, for tests: each case is one layout on one world.

`python -m tests.training FOLDER WORLD` starts WORLD gloo processes, which take the
cases of that many ranks one after another and write what each rank saw.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.uniform import Uniform
from profiles.job import Job
from profiles.models.catalog import model
from profiles.models.spec import DecoderSpec

STEPS = 10
BATCH = 8

FP32 = Uniform(precision="fp32", micro_batch=2)
CASES: dict[str, Uniform] = {
    "single": replace(FP32, micro_batch=8),
    "accumulation": FP32,
    "full-recompute": replace(FP32, recompute="full"),
    "selective-recompute": replace(FP32, recompute="selective"),
    "dp2": replace(FP32, dp=2, zero=0),
    "zero1": replace(FP32, dp=2, zero=1, zero_group=2),
    "zero2": replace(FP32, dp=2, zero=2, zero_group=2),
    "fsdp2": replace(FP32, dp=2, zero=3, zero_group=2),
    "tp2": replace(FP32, tp=2),
    "tp2-sp": replace(FP32, tp=2, sequence_parallel=True),
    "pp2-gpipe": replace(FP32, pp=2, schedule="gpipe"),
    "pp2-1f1b": replace(FP32, pp=2),
    "pp2-interleaved": replace(FP32, pp=2, virtual_stages=2, schedule="interleaved"),
    "tp2-pp2": replace(FP32, tp=2, pp=2, sequence_parallel=True),
    "dp2-tp2": replace(FP32, dp=2, tp=2, zero=0),
    "dp2-pp2": replace(FP32, dp=2, pp=2, zero=0),
    "dp2-pp2-interleaved-zero1": replace(
        FP32,
        **{"dp": 2, "pp": 2, "zero": 1, "zero_group": 2},
        **{"schedule": "interleaved", "virtual_stages": 2},
    ),
    "fsdp2-tp2": replace(
        FP32, dp=2, tp=2, zero=3, zero_group=2, sequence_parallel=True
    ),
    "fsdp2-pp2": replace(FP32, dp=2, pp=2, zero=3, zero_group=2, recompute="full"),
    "zero2-pp2": replace(FP32, dp=2, pp=2, zero=2, zero_group=2, schedule="gpipe"),
}
FAMILIES = ("gpt", "llama")


def job(family: str) -> Job:
    """A small model: GPT (tied, learned positions) or Llama (grouped, gated)."""
    if family == "gpt":
        spec = model("gpt-tiny").spec
        assert isinstance(spec, DecoderSpec)
        shape = {"hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16}
        spec = replace(spec, **shape, ffn_hidden=256)
    else:
        spec = model("llama3.2-1b").spec
        assert isinstance(spec, DecoderSpec)
        spec = replace(
            spec,
            **{"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16},
            **{"ffn_hidden": 128, "vocab": 512, "qk_norm": True},
            tied_embeddings=False,
        )
    return Job(model=family, spec=spec, seq_len=64, global_batch=BATCH)


def cases_of(world: int) -> list[str]:
    """The cases of so many ranks."""
    return [name for name, choice in CASES.items() if choice.gpus == world]


def trained(family: str, choice: Uniform) -> dict[str, Any]:
    """What this rank saw: losses, first gradients and final parameters, whole."""
    import torch

    from costmodel.uniform import spell_out
    from runtime.data.source import source
    from runtime.optimizer import Settings
    from runtime.trainer import Trainer

    asked = job(family)
    layout = spell_out(choice, asked.graph, BATCH)
    trainer = Trainer(
        asked,
        layout,
        source("synthetic", vocab=512, seq_len=asked.seq_len, seed=3),
        settings=Settings(lr=1e-3, clip=0.5),
        seed=7,
        device=torch.device("cpu"),
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


def _rank(rank: int, world: int, folder: str) -> None:
    import logging
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    logging.getLogger("torch.distributed.tensor._redistribute").setLevel("ERROR")
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, f"store-{world}")), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    for family in FAMILIES:
        for name in cases_of(world):
            seen = trained(family, CASES[name])
            torch.save(seen, Path(folder, f"{family}-{name}-{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def main(folder: str, world: int) -> None:
    """Start the ranks and wait for them."""
    import torch.multiprocessing as mp

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    mp.spawn(_rank, (world, folder), nprocs=world)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
