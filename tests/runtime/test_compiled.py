"""`torch.compile` of layers: the same numbers, and refused where it is not right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.offload import Offload
from costmodel.uniform import Uniform, spell_out
from profiles.errors import Unsupported
from profiles.job import Job
from profiles.models.spec import DecoderSpec
from runtime.compiled import require_compilable
from tests.apart import apart
from tests.runtime.ranks import on_ranks
from tests.training import reference, trained
from tests.training_cases import BATCH, CASES, FP32, MOE, job

ALONE = ("single", "full-recompute", "states-away")
TOGETHER = ("fsdp2", "pp2-1f1b")
LOSS, TENSORS = 1e-5, 1e-4


@pytest.mark.matrix
@pytest.mark.parametrize(("world", "names"), [(1, ALONE), (2, TOGETHER)])
def test_compiled_layers_train_like_plain_ones(
    world: int, names: tuple[str, ...]
) -> None:
    wanted, ranks = reference("gpt"), on_ranks(world, runs, names)
    for name in names:
        seen = [rank[name] for rank in ranks]
        pairs = zip(seen[0]["losses"], wanted["losses"], strict=True)
        assert max(abs(one - two) for one, two in pairs) < LOSS, name
        parts = {key: one for rank in seen for key, one in rank["parameters"].items()}
        assert apart(parts, wanted["parameters"]) < TENSORS, name
        assert all(rank["compiled"] for rank in seen), name


def runs(rank: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Ten steps each, the first of them recorded and so not compiled."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    found = {}
    for name in names:
        torch._dynamo.reset()
        counters.clear()
        run = trained("gpt", CASES[name], compiled=True)
        frames = counters["frames"]
        whole = frames["total"] == frames["ok"] > 0 and not counters["graph_break"]
        found[name] = {**run, "compiled": whole}
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
    ],
)
def test_layouts_that_compile(choice: Uniform) -> None:
    require_compilable(*asked(choice), "cpu")


@pytest.mark.parametrize(
    ("choice", "spec", "reason"),
    [
        (replace(FP32, tp=2), {}, "plan with --tp 1"),
        (replace(FP32, cp=2), {}, "plan with --cp 1"),
        (replace(FP32, dp=2, ep=2), {"moe": MOE}, "choose a dense model"),
        (replace(FP32, pp=2, schedule="zb-h1"), {}, "schedule zb-h1 splits backwards"),
        (replace(FP32, recompute="selective"), {}, r"inside \(selective\)"),
        (replace(FP32, recompute="cheap-ops"), {}, r"inside \(by name\)"),
        (
            replace(FP32, offload=Offload(activations=0.5)),
            {},
            r"inside \(offloaded\): choose recompute none",
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


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unsupported, match=r"no-such-compiler: install one.* by CXX"):
        require_compilable(*asked(FP32), "cpu")
    monkeypatch.setattr("runtime.compiled.find_spec", lambda _: None)
    monkeypatch.setenv("CC", "neither")
    with pytest.raises(Unsupported, match=r"package triton .* neither"):
        require_compilable(*asked(FP32), "cuda")
