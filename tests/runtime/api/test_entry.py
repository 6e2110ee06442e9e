"""A plain module by a layout: cut, split and sharded, it trains like one process."""

from __future__ import annotations

import os
import runpy
import socket
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing import get_context
from torch.multiprocessing.spawn import start_processes

from costmodel.__main__ import main as simulate
from costmodel.layout.layout import Layout
from costmodel.layout.strategy import Uniform, spell_out
from profiles.errors import Contradiction, Unsupported
from runtime.api.entry import _redone, require_ranks
from runtime.api.module_chain import chain_of, cut
from tests.runtime.ranks import METHOD, SLOW_TO_IMPORT, on_ranks
from tests.support.apart import apart
from tests.support.small_layouts import (
    FP32,
    ON_DRIVE,
    OPTIMIZER,
    STATES,
    STATES_ON_DRIVE,
)
from tests.support.training_cases import job

WIDTH, VOCAB, BATCH, STEPS = 16, 32, 8, 2
CASES: dict[str, Uniform] = {
    "tp2-pp2": replace(FP32, tp=2, pp=2, micro_batch=2),
    "dp2-pp2": replace(FP32, dp=2, pp=2, zero=0, micro_batch=1),
    "zero1-pp2-interleaved": replace(
        FP32,
        dp=2,
        pp=2,
        zero=1,
        zero_group=2,
        schedule="interleaved",
        virtual_stages=2,
        recompute="full",
        micro_batch=2,
    ),
    "dp2-tp2": replace(FP32, dp=2, tp=2, zero=0, micro_batch=4),
    "fsdp2-tp2": replace(FP32, dp=2, tp=2, zero=3, zero_group=2, micro_batch=4),
    "hybrid": replace(FP32, dp=4, zero=3, zero_group=2, micro_batch=2),
    "hybrid-pp2": replace(FP32, dp=2, pp=2, zero=2, zero_group=1, micro_batch=2),
    "some-again": replace(FP32, dp=4, zero=0, recompute="full", recompute_layers=2),
    "dp2-tp2-optimizer-away": replace(
        FP32, dp=2, tp=2, zero=0, micro_batch=4, offload=OPTIMIZER
    ),
    "zero2-optimizer-away": replace(
        FP32, dp=4, zero=2, zero_group=4, offload=OPTIMIZER
    ),
    "fsdp4-optimizer-away": replace(
        FP32, dp=4, zero=3, zero_group=4, offload=OPTIMIZER
    ),
    "fsdp4-states-away": replace(FP32, dp=4, zero=3, zero_group=4, offload=STATES),
    "dp2-pp2-optimizer-away": replace(
        FP32, dp=2, pp=2, zero=0, micro_batch=1, offload=OPTIMIZER
    ),
    "fsdp2-pp2-optimizer-away": replace(
        FP32, dp=2, pp=2, zero=3, zero_group=2, micro_batch=2, offload=OPTIMIZER
    ),
    "dp2-tp2-drive": replace(FP32, dp=2, tp=2, zero=0, micro_batch=4, offload=ON_DRIVE),
    "zero2-drive": replace(FP32, dp=4, zero=2, zero_group=4, offload=ON_DRIVE),
    "fsdp4-states-drive": replace(
        FP32, dp=4, zero=3, zero_group=4, offload=STATES_ON_DRIVE
    ),
    "fsdp2-pp2-drive": replace(
        FP32, dp=2, pp=2, zero=3, zero_group=2, micro_batch=2, offload=ON_DRIVE
    ),
    "zero1-pp2-drive": replace(
        FP32, dp=2, pp=2, zero=1, zero_group=2, micro_batch=2, offload=ON_DRIVE
    ),
    "tp2-pp2-states-away": replace(
        FP32, tp=2, pp=2, zero=3, micro_batch=2, offload=STATES
    ),
}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, stream: Tensor) -> Tensor:
        made: Tensor = stream + self.down(F.gelu(self.up(self.norm(stream))))
        return made


class Plain(nn.Module):
    """Embedding, four layers, head; as anybody writes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Mlp() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.table(tokens)
        for layer in self.layers:
            stream = layer(stream)
        made: Tensor = self.head(stream)
        return made

    @property
    def units(self) -> list[nn.Module]:
        return [self.table, *self.layers, self.head]


def loss_of(made: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(made.flatten(0, 1), wanted.flatten())


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCAB, (BATCH, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def layout(choice: Uniform) -> Layout:
    return spell_out(choice, job("gpt").graph, BATCH)


def plain() -> dict[str, Any]:
    model = Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    losses, norms = [], []
    for step in range(STEPS):
        inputs, targets = batch(step)
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        losses.append(float(loss.detach()))
    names = {id(one): name for name, one in _by_place(model).items()}
    parameters = {names[id(one)]: one.detach() for one in model.parameters()}
    return {"losses": losses, "norms": norms, "parameters": parameters}


def _by_place(model: Plain) -> dict[str, nn.Parameter]:
    return dict(nn.ModuleList(model.units).named_parameters())


def trained(rank: int) -> dict[str, Any]:
    return {name: _trained(name) for name in CASES}


def _trained(name: str) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    from runtime.api.entry import clip_gradients, optimizer, parallelize

    module = Plain()
    asked = layout(CASES[name])
    styles = {"layers.*.up": "column", "layers.*.down": "row"}
    model: Any = parallelize(
        module, asked, units=module.units, styles=styles, loss=loss_of
    )
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.5, foreach=False)
    updated = optimizer(model, asked, make)
    dp, tp = CASES[name].dp, CASES[name].tp
    place = dist.get_rank() // tp % dp
    losses, norms = [], []
    for step in range(STEPS):
        inputs, targets = (one.chunk(dp)[place] for one in batch(step))
        if asked.pp > 1:
            loss = model.step(inputs, targets)
        else:
            updated.zero_grad()
            loss = loss_of(model(inputs), targets)
            loss.backward()
            loss = loss.detach()
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
        norms.append(float(clip_gradients(model, asked, 0.5, updated=updated)))
        updated.step()
        losses.append(float(loss))
    if asked.pp > 1:
        own = {n.removeprefix("units."): p for n, p in model.named_parameters()}
    else:
        own = _by_place(module)
    whole = {n: _whole(p.detach()).clone() for n, p in own.items()}
    split = sum(isinstance(p, DTensor) for p in own.values())
    return {
        "losses": losses,
        "norms": norms,
        "parameters": whole,
        "split": split,
        "updated by": type(updated).__name__,
        "redone": ["forward" in vars(layer) for layer in module.layers],
    }


def expected_redone(choice: Uniform) -> list[bool]:
    """Of the four layers, those whose backward runs them again."""
    every = 4 if choice.recompute_layers is None else choice.recompute_layers
    return [choice.recompute == "full" and number < every for number in range(4)]


def _whole(value: Any) -> Tensor:
    from torch.distributed.tensor import DTensor

    made: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return made


@pytest.mark.slow
def test_a_plain_module_trains_like_one_process() -> None:
    wanted, ranks = plain(), on_ranks(4, trained)
    for name, choice in CASES.items():
        found = {n: p for rank in ranks for n, p in rank[name]["parameters"].items()}
        assert apart(found, wanted["parameters"]) < 1e-5, name
        for rank in ranks:
            assert rank[name]["losses"] == pytest.approx(wanted["losses"], abs=1e-5)
            assert rank[name]["norms"] == pytest.approx(wanted["norms"], rel=1e-4)
            assert bool(rank[name]["split"]) == (choice.tp > 1 or choice.zero > 0)
            masters = choice.offload.optimizer and choice.zero in (0, 3)
            kept = masters and not choice.offload.parameters
            away = kept or choice.offload.tier == "nvme"
            assert rank[name]["updated by"] == ("Update" if away else "SGD")
            assert rank[name]["redone"] == expected_redone(choice)
        if choice.pp > 1:
            held = [set(rank[name]["parameters"]) for rank in ranks]
            assert held[0] != held[-1], "each rank has its own stages"


class Called(nn.Module):
    """Calls its layers by name, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mlp() for _ in range(4))

    def forward(self, stream: Tensor) -> Tensor:
        for layer in self.layers:
            stream = layer(stream=stream)
        return stream


def treated(rank: int) -> dict[str, Any]:
    """What modules are after `parallelize`, on two ranks."""
    from runtime.api.entry import parallelize

    found: dict[str, Any] = {}
    for name, choice in (("tp2", replace(FP32, tp=2)), ("pp2", PP2)):
        module = Plain()
        for one in module.parameters():
            one.data += rank  # another seed, so to say
        parallelize(module, layout(choice), units=module.units, loss=loss_of)
        found[name] = {n: _whole(p.detach()) for n, p in module.named_parameters()}
    inputs, _ = batch(0)
    for zero in (0, 3):
        amp = replace(FP32, dp=2, zero=zero, zero_group=2, precision="amp-bf16")
        found[f"amp zero {zero}"] = parallelize(Plain(), layout(amp))(inputs).detach()
    again = replace(FP32, dp=2, zero=0, recompute="full")
    called = parallelize(Called(), layout(again))
    called(torch.ones(2, WIDTH)).sum().backward()
    found["made"] = [one.grad is not None for one in called.parameters()]
    with pytest.raises(Contradiction, match=r"is of 4 ranks and .* has 2"):
        parallelize(Plain(), layout(replace(FP32, dp=4)))
    return found


def test_ranks_begin_alike_and_compute_as_the_layout_says() -> None:
    inputs, _ = batch(0)
    wanted, module = dict(Plain().named_parameters()), Plain()
    exact = module(inputs).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = module(inputs).detach().float()
    assert not torch.equal(cast, exact)
    for seen in on_ranks(2, treated):
        for name in ("tp2", "pp2"):
            for parameter, value in wanted.items():
                assert torch.equal(seen[name][parameter], value), (name, parameter)
        for zero in (0, 3):
            assert torch.equal(seen[f"amp zero {zero}"], cast)
        assert all(seen["made"])


def test_a_process_group_is_asked_for() -> None:
    with pytest.raises(Contradiction, match="torchrun --nproc-per-node 4"):
        require_ranks(layout(replace(FP32, dp=4)))


FSDP = "--model gpt-tiny --dp 2 --zero 3 --recompute full --offload optimizer"
OTHERS = {
    "pp": "--model gpt-350m --pp 2",
    "ddp": "--model gpt-tiny --dp 2 --zero 0",
    "tp": "--model gpt-tiny --tp 2 --no-sequence-parallel",
}


def test_the_script_of_the_page_trains(root: Path, tmp_path: Path) -> None:
    """In processes that know what torchrun tells them, and nothing else."""
    _written(FSDP, f"{tmp_path}/layout.json")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    get_context(METHOD).set_forkserver_preload(SLOW_TO_IMPORT)
    script = str(root / "docs" / "train.py")
    start_processes(launched, (script, tmp_path, port), 2, start_method=METHOD)
    printed = (tmp_path / "0.txt").read_text()
    assert float(printed.split()[-1]) < 1.0
    assert not (tmp_path / "1.txt").read_text()


def launched(rank: int, script: str, folder: Path, port: int) -> None:
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in told.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    with (
        (folder / f"{rank}.txt").open("w") as out,
        patch.object(sys, "argv", [script, str(folder / "layout.json")]),
        redirect_stdout(out),
    ):
        runpy.run_path(script, run_name="__main__")


def test_the_script_of_the_page_trains_by_other_layouts(
    root: Path, tmp_path: Path
) -> None:
    files = {name: str(tmp_path / f"{name}.json") for name in OTHERS}
    for name, asked in OTHERS.items():
        _written(asked, files[name])
    first, _ = on_ranks(2, scripted, str(root / "docs" / "train.py"), files)
    for name, printed in first.items():
        assert float(printed.split()[-1]) < 1.0, name


def test_the_script_of_the_page_says_what_it_needs(root: Path, tmp_path: Path) -> None:
    files = {"cp": str(tmp_path / "cp.json")}
    _written("--model gpt-tiny --cp 2", files["cp"])
    first, second = on_ranks(2, scripted, str(root / "docs" / "train.py"), files)
    said = "train.py: a layout with cp 2 changes what a module computes"
    assert first["cp"].startswith(said)
    assert second["cp"] == "2", "one rank says it"


def scripted(rank: int, script: str, files: dict[str, str]) -> dict[str, str]:
    """What the script prints for each layout, or leaves with, in a process group that
    is there."""
    printed = {}
    with (
        patch.object(dist, "init_process_group"),
        patch.object(dist, "destroy_process_group"),
    ):
        for name, file in files.items():
            out = StringIO()
            with patch.object(sys, "argv", [script, file]), redirect_stdout(out):
                try:
                    runpy.run_path(script, run_name="__main__")
                except SystemExit as left:
                    print(left.code)
            printed[name] = out.getvalue().rstrip()
    return printed


def _written(asked: str, file: str) -> None:
    whole = f"{asked} --gpus 2 --global-batch 8 --micro-batch 2 --precision fp32"
    assert simulate([*whole.split(), "--out", file]) == 0


PP2 = replace(FP32, pp=2, micro_batch=2)


def test_layers_made_again_are_told_by_their_number() -> None:
    units, again = Plain().units, [True, True, False, False]
    wanted = units[1:3]
    assert list(_redone(units, again)) == wanted
    assert list(_redone(units[1:-1], again)) == wanted
    assert list(_redone([*units, nn.Identity()], again)) == wanted
    assert list(_redone(units[1:4], [True] * 4)) == units[1:4]
    with pytest.raises(Contradiction, match="give units=, one per layer"):
        list(_redone(units[1:4], again))


def test_units_are_cut_where_the_plan_says() -> None:
    units = Plain().units
    assert cut(units, layout(PP2)) == [[0, 1, 2], [3, 4, 5]]
    apart_from_norm = [*units[:-1], nn.LayerNorm(WIDTH), units[-1]]
    assert cut(apart_from_norm, layout(PP2)) == [[0, 1, 2], [3, 4, 5, 6]]
    with pytest.raises(Contradiction, match="give 6"):
        cut(units[1:], layout(PP2))


def test_a_module_that_is_no_known_chain_is_refused() -> None:
    module = Plain()
    with pytest.raises(Unsupported, match=r"units=\[embedding"):
        chain_of(module, None)
    with pytest.raises(Contradiction, match=r"no unit holds head\.weight"):
        chain_of(module, module.units[:-1])
    module.head.weight = module.table.weight
    with pytest.raises(Unsupported, match="tied"):
        chain_of(module, module.units)
    assert len(chain_of(nn.Sequential(*Plain().units), None)) == 6
