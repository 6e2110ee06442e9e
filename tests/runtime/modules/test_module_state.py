"""Modules of users' own saved and gone on with, by any layout; weights in and out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from profiles.errors import Contradiction, InvalidFile, Unsupported
from profiles.models import ModuleSpec
from profiles.trace import module_of
from runtime.train import samples
from runtime.weights import exported, weights_of
from tests.runtime.ranks import on_ranks
from tests.support.measured_module import HUGGING_FACE, OWN, needs_transformers
from tests.support.module_runs import handed_on, resumed, trained_on
from tests.support.trained_module import job

pytest.importorskip("safetensors", reason="pip install safetensors reads weights")

Case = Mapping[str, Any]
DP: Case = {"dp": 2, "zero": 0}
ZERO_3: Case = {"dp": 2, "zero": 3, "zero_group": 2}
PP: Case = {"pp": 2}
PARTS: Case = {"pp": 2, "schedule": "interleaved", "virtual_stages": 2}
TP: Case = {"tp": 2}


def require_resumed(reference: str, cases: Mapping[str, Case], folder: Path) -> None:
    """The first case goes on as it would have, bit for bit; others by rounding."""
    first = next(iter(cases))
    for after, found in on_ranks(2, resumed, reference, cases, str(folder)):
        assert found[first] == after
        for name, losses in found.items():
            assert losses == pytest.approx(after, rel=1e-5), name


def require_handed_on(reference: str, cases: Mapping[str, Case], folder: Path) -> None:
    seen, _ = on_ranks(2, handed_on, reference, cases, str(folder))
    first, *others = seen.values()
    assert others == pytest.approx([first] * len(others), rel=1e-5)


def test_a_tied_table_is_resumed_by_any_layout(tmp_path: Path) -> None:
    cases = {"interleaved": PARTS, "ZeRO-3": ZERO_3, "tp": TP}
    require_resumed(f"{OWN}:by_hand", cases, tmp_path)


def test_queries_keys_and_values_side_by_side_are_saved_in_order(
    tmp_path: Path,
) -> None:
    require_resumed(f"{OWN}:fused", {"tp": TP, "dp": DP}, tmp_path)
    again = {"dp": DP, "tp": TP, "pp": PP}
    require_handed_on(f"{OWN}:fused", again, tmp_path / "weights")


@pytest.mark.slow
def test_and_split_over_replicas_too(tmp_path: Path) -> None:
    cases = {
        "tp 2 × ZeRO-3": {"tp": 2, "dp": 2, "zero": 3, "zero_group": 2},
        "tp 4": {"tp": 4},
        "pp 2": {"pp": 2, "dp": 2},
    }
    for after, found in on_ranks(4, resumed, f"{OWN}:fused", cases, str(tmp_path)):
        for name, losses in found.items():
            assert losses == pytest.approx(after, rel=1e-5), name


@pytest.mark.slow
def test_running_statistics_and_layers_that_many_share_are_resumed(
    tmp_path: Path,
) -> None:
    require_resumed(f"{OWN}:wide_resnet", {"ZeRO-3": ZERO_3, "pp": PP}, tmp_path / "a")
    require_resumed(
        f"{OWN}:odd", {"dp": DP, "pp": PP, "ZeRO-3": ZERO_3}, tmp_path / "b"
    )


def test_weights_go_from_layout_to_layout(tmp_path: Path) -> None:
    cases = {"interleaved": PARTS, "ZeRO-3": ZERO_3, "dp": DP}
    require_handed_on(f"{OWN}:by_hand", cases, tmp_path)
    module, _ = module_of(f"{OWN}:by_hand", meta=False)
    from safetensors.torch import load_file

    theirs = load_file(tmp_path / "dp" / "model.safetensors")
    assert not (tmp_path / "dp" / "config.json").exists()
    missing = module.load_state_dict(theirs, strict=False)
    assert missing.missing_keys == ["head.weight"]  # tied: the table's
    assert missing.unexpected_keys == []


@needs_transformers
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "mixtral"])
def test_transformers_reads_what_is_written(name: str, tmp_path: Path) -> None:
    cases = {"ZeRO-3": ZERO_3, "dp": DP}
    if name != "mixtral":
        cases |= {"pp": PP}
    reference = f"{HUGGING_FACE}:{name}"
    seen, _ = on_ranks(2, handed_on, reference, cases, str(tmp_path))
    losses = list(seen.values())
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    own, _ = module_of(reference, meta=False)
    folder = tmp_path / list(cases)[-1]
    model, said = type(own).from_pretrained(folder, output_loading_info=True)  # type: ignore[attr-defined]
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    from runtime.train.trainer import BEYOND

    spec = job(reference).spec
    assert isinstance(spec, ModuleSpec)
    given = samples("synthetic", spec, 0)
    with torch.no_grad():
        made = [
            float(model.train()(**given.inputs(torch.tensor([BEYOND + n])).kwargs).loss)
            for n in range(4)
        ]
    assert sum(made) / 4 == pytest.approx(losses[0], rel=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the module with a tied table."""
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("weights")
    module, _ = module_of(f"{OWN}:by_hand", meta=False)
    named = {name: one.detach() for name, one in module.named_parameters()}
    save_file(named, path / "model.safetensors")
    return path


def test_wrong_weights_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    asked = job(f"{OWN}:by_hand")
    assert len(weights_of(asked, folder).places) == 1 + 3 * 8
    tensors = load_file(folder / "model.safetensors")
    bias = "layers.0.key.bias"
    for wrong, said in (
        ({k: v for k, v in tensors.items() if k != bias}, f"lacks {bias}, of {OWN}"),
        ({**tensors, "spare": tensors[bias].clone()}, "has an unknown tensor spare"),
        ({**tensors, bias: torch.ones(3)}, rf"{bias} has shape \(3,\), \(64,\) of"),
    ):
        save_file(wrong, tmp_path / "model.safetensors")
        with pytest.raises(InvalidFile, match=said):
            weights_of(asked, tmp_path)
    both = {**tensors, "head.weight": torch.ones(50, 64)}
    save_file(both, tmp_path / "model.safetensors")
    read = weights_of(asked, tmp_path)
    (table,) = read.tensors(["embed.weight"])
    assert torch.equal(table, tensors["embed.weight"])
    with pytest.raises(Contradiction, match="is there already"):
        exported(None, str(folder), asked)


@needs_transformers
def test_weights_of_another_configuration_are_refused(tmp_path: Path) -> None:
    reference = f"{HUGGING_FACE}:gpt2"
    module, _ = module_of(reference, meta=False)
    module.save_pretrained(tmp_path)  # type: ignore[operator]
    asked = job(reference)
    weights_of(asked, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_head": 8}))
    with pytest.raises(Contradiction, match="n_head is 8 there and 4 in the module"):
        weights_of(asked, tmp_path)


def test_tokens_of_a_file_are_read_by_any_layout(tmp_path: Path) -> None:
    import numpy as np

    data = tmp_path / "tokens.npy"
    np.save(data, np.arange(4000) % 7)
    cases = {"dp": DP, "pp": PP}
    for found in on_ranks(2, trained_on, f"{OWN}:by_hand", cases, str(data)):
        assert found["pp"] == pytest.approx(found["dp"], rel=1e-5)
        assert found["dp"][1] < found["dp"][0]
        assert found["dp"][2] < found["dp"][3]  # what it was not trained on
    spec = job(f"{OWN}:by_hand").spec
    assert isinstance(spec, ModuleSpec)
    tokens, labels = samples(str(data), spec, 0).inputs(torch.tensor([0, 3])).args
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    np.save(data, np.full(100, 50))
    with pytest.raises(Contradiction, match="vocabulary is 0 to 49"):
        samples(str(data), spec, 0)


def test_modules_of_other_inputs_take_no_tokens(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("what is written")
    for name, why in (
        ("unet", "its inputs are not tokens and a label for each"),
        ("odd", "its inputs are not tokens"),
    ):
        spec = job(f"{OWN}:{name}").spec
        assert isinstance(spec, ModuleSpec)
        with pytest.raises(Unsupported, match=why):
            samples(str(text), spec, 0)


@needs_transformers
def test_labels_of_hugging_face_are_as_their_models_say(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("what is written " * 20)
    spec, other = (job(f"{HUGGING_FACE}:{name}").spec for name in ("gpt2", "bert"))
    assert isinstance(spec, ModuleSpec)
    assert isinstance(other, ModuleSpec)
    given = samples(str(text), spec, 0).inputs(torch.tensor([0])).kwargs
    assert torch.equal(given["input_ids"], given["labels"])  # shifted by the model
    with pytest.raises(Unsupported, match="labels are not the tokens that come next"):
        samples(str(text), other, 0)
