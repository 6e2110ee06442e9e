"""Folders of Hugging Face's weights: read by any layout, written by any, refused by
name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from costmodel.layout.strategy import Uniform, spell_out
from profiles.errors import Contradiction, MeshwrightError
from profiles.models.spec import DecoderSpec
from runtime.weights.folder import CONFIG, INDEX, ONE, WeightsFolder
from runtime.weights.names import bonds
from runtime.weights.reader import load_weights
from runtime.weights.writer import Export, exported, save_weights
from tests.runtime.ranks import on_ranks
from tests.support.foreign_models import (
    BATCH,
    CONFIGS,
    FP32,
    job_of,
    trainer_of,
)

pytest.importorskip("safetensors", reason="pip install safetensors reads weights")

FAMILIES = ("gpt2", "gpt2-tied", "llama", "llama-tied", "qwen3", "mixtral", "dbrx")
LAYOUTS: dict[str, Uniform] = {
    "one rank": FP32,
    "tp 2 × pp 2": replace(FP32, tp=2, pp=2, sequence_parallel=True),
    "ZeRO-3 of 4": replace(FP32, dp=4, zero=3, zero_group=4),
    "dp 2 × tp 2, ZeRO-1": replace(
        FP32, dp=2, tp=2, zero=1, zero_group=2, sequence_parallel=True
    ),
    "chimera": replace(FP32, pp=2, dp=2, schedule="chimera"),
}


def spec_of(name: str) -> DecoderSpec:
    spec = job_of(name).spec
    assert isinstance(spec, DecoderSpec)
    return spec


def folder_of(name: str, path: Path, *, files: int = 1) -> dict[str, torch.Tensor]:
    """A folder of random weights in *files*; gives them."""
    from safetensors.torch import save_file

    torch.manual_seed(len(name))
    path.mkdir(parents=True, exist_ok=True)
    shapes = {
        theirs: shape
        for bond in bonds(spec_of(name), CONFIGS[name]["model_type"])
        for theirs, shape in bond.theirs.items()
    }
    tensors = {name: torch.randn(shape) / 7 for name, shape in shapes.items()}
    (path / CONFIG).write_text(json.dumps(CONFIGS[name]))
    if files == 1:
        save_file(tensors, path / ONE)
        return tensors
    places = {
        one: f"m-{number % files}.safetensors" for number, one in enumerate(shapes)
    }
    for file in set(places.values()):
        some = {one: tensors[one] for one, place in places.items() if place == file}
        save_file(some, path / file)
    (path / INDEX).write_text(json.dumps({"weight_map": places}))
    return tensors


def read_back(path: Path) -> dict[str, torch.Tensor]:
    folder = WeightsFolder.read(path)
    return dict(zip(folder.places, folder.tensors(folder.places), strict=True))


def handed_on(rank: int, names: list[str], ranks: int, folder: str) -> dict[str, float]:
    """Weights read by each layout, the loss of a step that changes nothing, and the
    weights written."""
    losses = {}
    for name in names:
        for layout, choice in LAYOUTS.items():
            if choice.gpus != ranks or not fits(name, choice):
                continue
            job = job_of(name)
            trainer = trainer_of(job, spell_out(choice, job.graph, BATCH))
            parts = [held.module for held in trainer.stages]
            source = WeightsFolder.read(Path(folder, name))
            load_weights(source, parts, trainer.optimizer)
            path, found = Path(folder, f"{name} {layout}"), source.expected.bonds
            export = Export(path=path, bonds=found, config=source.config)
            mesh = trainer.mesh
            first = mesh["dp"].get_local_rank() + mesh["tp"].get_local_rank() == 0
            ours = [held.module for held in trainer.stages if held.copy == 0]
            save_weights(export, ours, writes=first)
            losses[f"{name}, {layout}"] = trainer.step(0).loss
    return losses


def fits(name: str, choice: Uniform) -> bool:
    return choice.schedule != "chimera" or name in ("gpt2", "llama")


@pytest.mark.slow
def test_every_layout_reads_and_writes_the_same_weights(tmp_path: Path) -> None:
    given = {
        name: folder_of(name, tmp_path / name, files=1 + (number % 2) * 2)
        for number, name in enumerate(FAMILIES)
    }
    losses: dict[str, float] = {}
    for ranks in sorted({one.gpus for one in LAYOUTS.values()}):
        first, *_ = on_ranks(ranks, handed_on, list(FAMILIES), ranks, str(tmp_path))
        losses |= first
    for key, loss in losses.items():
        name, _, layout = key.partition(", ")
        assert loss == pytest.approx(losses[f"{name}, one rank"], abs=1e-5), key
        written = read_back(tmp_path / f"{name} {layout}")
        assert written.keys() == given[name].keys()
        assert all(torch.equal(one, given[name][k]) for k, one in written.items()), key
    assert len(losses) == len(FAMILIES) * (len(LAYOUTS) - 1) + 2


def test_a_folder_without_the_models_prefix_is_read(tmp_path: Path) -> None:
    """As the first GPT-2 was published, with the mask of each layer."""
    from safetensors.torch import save_file

    tensors = folder_of("gpt2-tied", tmp_path)
    bare = {name.removeprefix("transformer."): one for name, one in tensors.items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 4, 4).tril()}
    save_file({**bare, **masks}, tmp_path / ONE)
    read = read_back(tmp_path)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(one, tensors[name]) for name, one in read.items())


Change = Callable[[Path, dict[str, torch.Tensor]], object]


def stored(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), path / ONE)


def changed(path: Path, **keys: Any) -> None:
    document = {**json.loads((path / CONFIG).read_text()), **keys}
    (path / CONFIG).write_text(json.dumps(document))


def indexed(path: Path, document: Any) -> None:
    (path / INDEX).write_text(json.dumps(document))


WRONG: dict[str, tuple[Change, str]] = {
    "missing": (
        lambda path, all_: stored(path, {k: all_[k] for k in all_ if "norm" not in k}),
        "lacks model.layers.0.input_layernorm.weight and 4 more",
    ),
    "unknown": (
        lambda path, all_: stored(path, {**all_, "model.extra": torch.ones(1)}),
        "has an unknown tensor model.extra",
    ),
    "shape": (lambda path, _: changed(path, vocab_size=97), r"shape \(96, 32\), \(97"),
    "integers": (
        lambda path, all_: stored(path, {k: v.to(torch.int8) for k, v in all_.items()}),
        "is I8; weights of",
    ),
    "cut": (
        lambda path, _: (path / ONE).write_bytes((path / ONE).read_bytes()[:5000]),
        "cannot be read as safetensors",
    ),
    "not safetensors": (
        lambda path, _: (path / ONE).write_bytes(b"\x80\x04no"),
        "cannot be read as safetensors",
    ),
    "no configuration": (
        lambda path, _: (path / CONFIG).unlink(),
        "config.json cannot be read",
    ),
    "pickled": (
        lambda path, _: (path / ONE).rename(path / "pytorch_model.bin"),
        "pickled tensors can run code and are not read",
    ),
    "a way out": (
        lambda path, _: indexed(path, {"weight_map": {"lm_head.weight": "../x"}}),
        r"names \.\./x, which is no file beside it",
    ),
    "a list": (lambda path, _: indexed(path, []), "has no weight_map"),
    "lost file": (
        lambda path, all_: indexed(path, {"weight_map": dict.fromkeys(all_, "gone")}),
        "gone cannot be read as safetensors",
    ),
    "another family": (
        lambda path, _: changed(path, model_type="nemotron_h"),
        "config.json",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_folder_is_refused_by_name(tmp_path: Path, wrong: str) -> None:
    tensors = folder_of("llama", tmp_path)
    change, said = WRONG[wrong]
    change(tmp_path, tensors)
    with pytest.raises(MeshwrightError, match=said) as caught:
        WeightsFolder.read(tmp_path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_weights_of_another_model_are_refused_by_what_differs(tmp_path: Path) -> None:
    folder_of("llama", tmp_path)
    folder = WeightsFolder.read(tmp_path)
    folder.require_of(replace(spec_of("llama"), dropout=0.3))
    with pytest.raises(Contradiction, match="vocab is 96 there and 97 in the layout"):
        folder.require_of(replace(spec_of("llama"), vocab=97))
    other = replace(spec_of("llama").numerics, rope_theta=5.0)
    with pytest.raises(Contradiction, match=r"numerics rope_theta is 300.0 there"):
        folder.require_of(replace(spec_of("llama"), numerics=other))


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    job = job_of("gpt2")
    assert exported(None, str(tmp_path / "mine"), job) is not None
    assert exported(None, None, job) is None
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(Contradiction, match="is there already"):
        exported(None, str(tmp_path / "mine"), job)


def test_what_transformers_reads_has_the_same_loss(
    executing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by four ranks of tp 2 and pp 2, after training."""
    transformers = pytest.importorskip(
        "transformers", reason="pip install transformers reads what is written"
    )
    from costmodel.simulation.layout_files import write_layout
    from runtime.data.sources import source
    from runtime.train.trainer import BEYOND

    monkeypatch.chdir(tmp_path)
    for name in ("gpt2-tied", "llama"):
        job = job_of(name)
        layout = spell_out(LAYOUTS["tp 2 × pp 2"], job.graph, BATCH)
        write_layout(tmp_path / "a.json", job, "local", layout)
        options = "--device cpu --steps 2 --lr 1e-2 --eval-data synthetic --json"
        out = tmp_path / name
        code, said, err = executing(
            "a.json", *options.split(), "--save-weights", str(out)
        )
        assert code == 0, err
        document = json.loads(said)
        assert document["unsaved"] is None
        ((_, loss),) = [(one["step"], one["loss"]) for one in document["evaluations"]]
        auto: Any = transformers.AutoModelForCausalLM
        model = auto.from_pretrained(out, attn_implementation="eager").float().eval()
        data = source("synthetic", vocab=96, seq_len=job.seq_len, seed=0)
        batch = data.sequences(BEYOND, BATCH)
        with torch.no_grad():
            logits = model(batch[:, :-1]).logits.flatten(0, 1)
        theirs = torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten())
        assert float(theirs) == pytest.approx(loss, abs=1e-5), name
        again = executing("a.json", *options.split(), "--weights", str(out))
        assert again[0] == 0, again[2]
        assert json.loads(again[1])["losses"][0] < document["losses"][0]
