"""`torch.compile` of layers: the same numbers, and refused where it is not right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from profiles.errors import Unsupported
from profiles.models.job import Job
from profiles.models.spec import DecoderSpec
from runtime.train.compile import require_compilable
from tests.runtime.ranks import on_ranks
from tests.support.apart import apart
from tests.support.blocks import along_sequences
from tests.support.small_layouts import FP32
from tests.support.training import reference, trained
from tests.support.training_cases import BATCH, choice_of, job

ALONE = ("single", "full-recompute", "states-away")
TOGETHER = (
    *("fsdp2", "pp2-1f1b", "tp2", "tp2-sp", "cp2-ring", "cp2-all-gather"),
    *("cp2-ulysses", "pp2-zb-h1", "pp2-zb-v", "pp2-dualpipe-v"),
)
OF_EXPERTS = ("dp2-ep2", "fsdp2")
WHOLE = {*ALONE, "fsdp2", "pp2-1f1b"}  # of a dense model one graph a layer
LOSS, TENSORS = 1e-5, 1e-4


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("family", "world", "names"),
    [("gpt", 1, ALONE), ("gpt", 2, TOGETHER), ("mixtral", 2, OF_EXPERTS)],
)
def test_compiled_layers_train_like_plain_ones(
    family: str, world: int, names: tuple[str, ...]
) -> None:
    wanted, ranks = reference(family), on_ranks(world, runs, family, names)
    for name in names:
        seen = [rank[name] for rank in ranks]
        pairs = zip(seen[0]["losses"], wanted["losses"], strict=True)
        assert max(abs(one - two) for one, two in pairs) < LOSS, name
        parts = {key: one for rank in seen for key, one in rank["parameters"].items()}
        assert apart(parts, wanted["parameters"]) < TENSORS, name
        assert all(rank["compiled"] for rank in seen), name
        whole = family == "gpt" and name in WHOLE
        assert all(rank["breaks"] == [] for rank in seen) == whole, name
        for cause in (cause for rank in seen for cause in rank["breaks"]):
            assert "torch.compiler.disable" in cause, name


def runs(rank: int, family: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Some steps each, the first of them recorded and so not compiled."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    found = {}
    for name in names:
        torch._dynamo.reset()
        counters.clear()
        run = trained(family, choice_of(family, name), compiled=True)
        frames = counters["frames"]
        found[name] = {
            **run,
            "compiled": frames["total"] == frames["ok"] > 0,
            "breaks": list(counters["graph_break"]),
        }
    return found


def asked(choice: Uniform, **spec: Any) -> tuple[Any, Job]:
    known = job("llama")
    assert isinstance(known.spec, DecoderSpec)
    trained_on = replace(known, spec=replace(known.spec, **spec))
    return spell_out(choice, trained_on.graph, BATCH), trained_on


@pytest.mark.parametrize(
    "choice",
    [
        FP32,
        replace(FP32, dp=2, zero=3, zero_group=2, recompute="full"),
        replace(FP32, pp=2, schedule="gpipe"),
        replace(FP32, recompute="sqrt"),
        replace(FP32, offload=Offload(optimizer=True)),
        replace(FP32, tp=2, sequence_parallel=True),
        replace(FP32, cp=2),
        replace(FP32, pp=2, schedule="zb-h1"),
    ],
)
def test_layouts_that_compile(choice: Uniform) -> None:
    require_compilable(*asked(choice), "cpu")


@pytest.mark.parametrize(
    ("choice", "spec", "reason"),
    [
        (replace(FP32, recompute="selective"), {}, r"inside a layer \(selective\)"),
        (replace(FP32, recompute="cheap-ops"), {}, r"inside a layer \(by name\)"),
        (
            replace(FP32, offload=Offload(activations=0.5)),
            {},
            r"inside a layer \(offloaded\): choose recompute none",
        ),
        (FP32, {"dropout": 0.1}, "dropout 0.1: set it to 0"),
    ],
)
def test_layouts_that_do_not_are_refused(
    choice: Uniform, spec: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason) as raised:
        require_compilable(*asked(choice, **spec), "cpu")
    assert raised.value.exit_code == 2
    assert "leave --compile out" in str(raised.value)


def test_operators_with_shardings_of_their_own_are_refused() -> None:
    layout, trained_on = asked(replace(FP32, tp=2))
    modules = along_sequences(trained_on.graph.block("layer"))
    layout = layout.sharded({"0": modules})
    with pytest.raises(Unsupported, match="leave the modules of the plans out"):
        require_compilable(layout, trained_on, "cpu")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unsupported, match=r"no-such-compiler: install one.* by CXX"):
        require_compilable(*asked(FP32), "cpu")
    monkeypatch.setattr("runtime.train.compile.find_spec", lambda _: None)
    monkeypatch.setenv("CC", "neither")
    with pytest.raises(Unsupported, match=r"package triton .* neither"):
        require_compilable(*asked(FP32), "cuda")
