"""Real gloo ranks for tests: processes that run one function and hand its result back.

They are forked from a server that has imported torch and the runtime once and run
nothing. Of one test they share device meshes.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import start_processes

import runtime.parallel.mesh

TIMEOUT = timedelta(seconds=60)
METHOD = "forkserver"
SLOW_TO_IMPORT = [
    "torch.distributed.pipelining.schedules",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "runtime.launch.worker",
]


def on_ranks(count: int, program: Callable[..., Any], *given: Any) -> list[Any]:
    """What `program(rank, *given)` returns on each of *count* ranks.

    *program* is a module's function; results are tensors, numbers, text, and
    dictionaries, lists and tuples of them.
    """
    with tempfile.TemporaryDirectory() as folder:
        get_context(METHOD).set_forkserver_preload(SLOW_TO_IMPORT)
        start_processes(
            _run, (folder, count, program, given), count, start_method=METHOD
        )
        return [torch.load(Path(folder, f"{rank}.pt")) for rank in range(count)]


def _run(rank: int, folder: str, count: int, program: Any, given: Any) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what was imported stays: no collection looks through it
    dist.init_process_group(
        "gloo",
        store=FileStore(f"{folder}/store", count),
        rank=rank,
        world_size=count,
        timeout=TIMEOUT,
    )
    with patch.object(runtime.parallel.mesh, "DeviceMesh", _one_of_a_shape()):
        torch.save(program(rank, *given), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def _one_of_a_shape() -> Callable[..., DeviceMesh]:
    """Makes meshes, and of ranks in the same grid the same one again: each of gloo's
    groups has threads that wake up a hundred times a second until the process ends."""
    made: dict[str, DeviceMesh] = {}

    def mesh(device: str, grid: Any, *, mesh_dim_names: tuple[str, ...]) -> DeviceMesh:
        key = f"{device} {grid.tolist()} {mesh_dim_names}"
        if key not in made:
            made[key] = DeviceMesh(device, grid, mesh_dim_names=mesh_dim_names)
        return made[key]

    return mesh
