"""Training as people expect it: rates, held-out losses, logs, traces, exact resume."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from costmodel.__main__ import main as simulate
from costmodel.layout.strategy import spell_out
from costmodel.simulation.layout_files import write_layout
from profiles.errors import (
    Contradiction,
    InvalidFile,
    MeshwrightError,
    RunFailed,
    Unsupported,
)
from runtime.checkpoint.directory import begin
from runtime.cli import execute
from runtime.data.hugging_face import Joined
from runtime.data.sources import source
from runtime.data.token_files import require_known
from runtime.launch import run
from runtime.launch.report import run_view
from runtime.launch.run import prepare
from runtime.optim.lr_schedule import KINDS, LearningRate
from runtime.train.options import Training
from tests.runtime.ranks import on_ranks
from tests.runtime.run_options import run_options
from tests.support.training import DATA_SEED, SEED
from tests.support.training_cases import BATCH, CASES, job

Execute = Callable[..., tuple[int, str, str]]
EVALUATED = ("pp2-chimera", "pp2-zb-v", "fsdp2", "tp2-sp")


@given(
    kind=st.sampled_from(list(KINDS)),
    warmup=st.integers(0, 9),
    least=st.floats(0, 1),
)
def test_a_rate_rises_to_lr_and_falls_to_the_least(
    kind: str, warmup: int, least: float
) -> None:
    rate = LearningRate(lr=1.0, steps=30, kind=kind, warmup_steps=warmup, least=least)
    rising = [rate.at(step) for step in range(warmup)]
    falling = [rate.at(step) for step in range(warmup, 31)]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert falling[0] == pytest.approx(1.0)
    assert falling[-1] == pytest.approx(1.0 if kind == "constant" else least)


def test_a_rate_that_cannot_be_is_refused() -> None:
    with pytest.raises(Contradiction, match="--warmup-steps 5"):
        LearningRate(lr=1.0, steps=5, warmup_steps=5)
    with pytest.raises(Contradiction, match="--min-lr 2"):
        LearningRate(lr=1.0, steps=5, least=2.0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"checkpoint_dir": "file/state"}, "--checkpoint-dir"),
        ({"checkpoint_dir": "file"}, "--checkpoint-dir"),
        ({"training": Training(log="file/run.jsonl")}, "--log"),
        ({"training": Training(trace="file/traces"), "steps": 9}, "--trace"),
        ({"training": Training(trace="traces"), "steps": 4}, "give 5 or more"),
        ({"data": "missing.txt", "checkpoint_dir": "new"}, "missing.txt"),
        ({"nnodes": 2, "checkpoint_dir": "new"}, "meet at HOST:PORT"),
        ({"rdzv_endpoint": "node0"}, "meet at HOST:PORT"),
    ],
)
def test_what_cannot_be_is_said_first_and_nothing_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    write_layout(
        tmp_path / "layout.json",
        job("gpt"),
        "local",
        spell_out(CASES["dp2"], job("gpt").graph, BATCH),
    )
    folder = asked.get("checkpoint_dir")
    more = {**asked, "checkpoint_dir": folder and Path(folder)}
    with pytest.raises(MeshwrightError, match=said) as raised:
        prepare(replace(run_options(Path("layout.json")), **more))
    assert raised.value.exit_code == 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "layout.json"]


@pytest.mark.parametrize(
    ("cluster", "steps", "said"),
    [
        ("dgx-a100-80gb", 4, ["priced for A100"]),
        ("dgx-a100-80gb", 3, ["priced for A100", "--steps 4 or more"]),
        ("local", 3, ["give --profile"]),  # nothing is compared
    ],
)
def test_what_a_comparison_cannot_say_is_said(
    tmp_path: Path, cluster: str, steps: int, said: list[str]
) -> None:
    file = tmp_path / "layout.json"
    layout = spell_out(CASES["dp2"], job("gpt").graph, BATCH)
    write_layout(file, job("gpt"), cluster, layout)
    warnings = prepare(replace(run_options(file), steps=steps)).warnings
    assert len(warnings) == len(said)
    for warning, words in zip(warnings, said, strict=True):
        assert words in warning


@pytest.mark.parametrize(
    ("case", "change", "said"),
    [
        ("dp2", {"schedule": "hanayo"}, "unknown schedule 'hanayo'"),
        ("pp2-dualpipe-v", {"micro_batches": 2}, "choose 4 or more"),
        ("pp2-chimera", {"micro_batches": 1}, "multiple of 2"),
    ],
)
def test_a_schedule_that_cannot_run_is_refused_without_a_profile_too(
    tmp_path: Path, case: str, change: dict[str, Any], said: str
) -> None:
    file = tmp_path / "layout.json"
    layout = spell_out(CASES[case], job("gpt").graph, BATCH)
    write_layout(file, job("gpt"), "local", replace(layout, **change))
    with pytest.raises(MeshwrightError, match=said) as raised:
        prepare(run_options(file))
    assert raised.value.exit_code == 2


def test_a_peak_that_nobody_watched_is_not_zero() -> None:
    """The second step's is; a run of one step has none."""
    document = {
        **dict.fromkeys(("predicted", "error", "missed")),
        "steps": 1,
        "step_time_s": {"median": 1.0},
        "peak_allocated_bytes": [None, None],
        "losses": [2.0],
        "wall_s": 1.0,
        "tokens_per_s_per_gpu": 1.0,
    }
    text = io.StringIO()
    Console(file=text, width=99).print(run_view(document))
    (peak,) = (line for line in text.getvalue().splitlines() if "peak" in line)
    assert peak.split() == ["peak", "allocated", "–", "–", "–"]
    assert "1 step in" in text.getvalue()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(Contradiction, match="--eval-data"):
        Training(eval_every=2).require()
    with pytest.raises(Contradiction, match="--log"):
        Training(log=str(tmp_path)).require()
    for package, call in (
        ("tensorboard", Training(tensorboard=str(tmp_path)).require),
        ("datasets", lambda: source("hf:x", vocab=300, seq_len=8, seed=0)),
    ):
        if find_spec(package) is None:
            with pytest.raises(Unsupported, match=f"package {package}.*pip install"):
                call()


@given(
    sizes=st.lists(st.integers(0, 5), max_size=6),
    first=st.integers(0, 40),
    count=st.integers(0, 40),
)
def test_joined_arrays_are_sliced_like_one(
    sizes: list[int], first: int, count: int
) -> None:
    parts = [np.arange(size) + 10 * place for place, size in enumerate(sizes)]
    whole = np.concatenate([*parts, np.empty(0, dtype=np.int64)])
    joined = Joined(parts)
    assert len(joined) == len(whole)
    assert (
        joined[first : first + count].tolist() == whole[first : first + count].tolist()
    )


def test_a_token_of_joined_arrays_that_the_model_lacks_is_named() -> None:
    joined = Joined([np.arange(5), np.arange(9, 12)])
    require_known(joined, 12, "data hf:x")
    with pytest.raises(Contradiction, match="data hf:x has token 10 at position 6"):
        require_known(joined, 10, "data hf:x")


def test_datasets_are_read_where_they_lie(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"input_ids": [[1, 2, 3], [4], [5, 6, 7, 8]], "text": ["ab", "", "cdefg"]}
    where = tmp_path / "set"
    datasets.Dataset.from_dict(rows).save_to_disk(where)
    tokens = source(f"hf:{where}", vocab=300, seq_len=3, seed=1).sequences(0, 50)
    stream = list(range(1, 9))
    crops = {tuple(stream[start : start + 4]) for start in range(5)}
    assert {tuple(row) for row in tokens.tolist()} <= crops
    text = source(f"hf:{where}:train:text", vocab=300, seq_len=3, seed=1)
    assert bytes(text.sequences(3, 1)[0].tolist()) in b"abcdefg"
    with pytest.raises(Contradiction, match="vocabulary is 0 to 6"):
        source(f"hf:{where}", vocab=7, seq_len=3, seed=1)
    with pytest.raises(Contradiction, match="no column words"):
        source(f"hf:{where}:train:words", vocab=300, seq_len=3, seed=1)
    with pytest.raises(Contradiction, match="one dataset, not a set of splits"):
        source(f"hf:{where}:test", vocab=300, seq_len=3, seed=1)
    with pytest.raises(InvalidFile, match="cannot be loaded"):
        source(f"hf:{tmp_path}", vocab=300, seq_len=3, seed=1)


def evaluated(rank: int) -> dict[str, Any]:
    """Losses of training, with evaluations between the steps and without."""
    import torch

    from runtime.models.decoder import decoder_of
    from runtime.optim.optimizer import Settings
    from runtime.train.build import Setup
    from runtime.train.trainer import Trainer

    found: dict[str, Any] = {}
    for name in EVALUATED:
        asked = replace(job("gpt"), spec=replace(decoder_of(job("gpt")), dropout=0.1))
        layout = spell_out(CASES[name], asked.graph, BATCH)
        data = source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED)
        rate = LearningRate(lr=1e-2, steps=4, kind="linear")
        for often in (False, True):
            trainer = Trainer(
                asked,
                layout,
                data,
                settings=Settings(lr=1e-2),
                setup=Setup(seed=SEED, device=torch.device("cpu")),
                rate=rate,
            )
            held_out = [trainer.evaluate(data, 2)] if often else []
            steps = []
            for number in range(3):
                steps.append(trainer.step(number))
                if often:
                    held_out.append(trainer.evaluate(data, 1))
            found[f"{name}-{often}"] = {
                "losses": [step.loss for step in steps],
                "rates": [step.learning_rate for step in steps],
                "held out": held_out,
            }
    return found


def plain_loss() -> float:
    """The same model's loss on the same held-out sequences, in plain PyTorch."""
    import torch

    from runtime.models.decoder import Stage, decoder_of, initialise
    from runtime.train.trainer import BEYOND

    asked = job("gpt")
    spec = decoder_of(asked)
    with torch.device("meta"):
        model = Stage(spec, asked.graph.layer_names)
    where = torch.device("cpu")
    initialise(model, prefix="", layers=spec.layers, seed=SEED, device=where)
    model.tie()
    data = source("synthetic", vocab=512, seq_len=asked.seq_len, seed=DATA_SEED)
    batch = data.sequences(BEYOND, 2 * BATCH)
    return float(model(batch[:, :-1], batch[:, 1:]).detach())


@pytest.mark.slow
def test_evaluation_is_of_the_whole_model_and_changes_nothing() -> None:
    wanted = plain_loss()
    for seen in on_ranks(2, evaluated):
        for name in EVALUATED:
            alone, often = seen[f"{name}-False"], seen[f"{name}-True"]
            assert often["held out"][0] == pytest.approx(wanted, abs=1e-5), name
            assert often["held out"][-1] < wanted
            assert often["losses"] == alone["losses"], name
            assert often["rates"] == pytest.approx([1e-2, 0.75e-2, 0.5e-2])


@pytest.mark.slow
def test_a_resumed_run_logs_what_the_whole_one_did(
    executing: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--model gpt-tiny --seq-len 32 --global-batch 4 --gpus 2 --precision fp32"
    assert simulate([*small.split(), "--out", "a.json"]) == 0
    options = (
        "--device cpu --steps 6 --lr-schedule cosine --warmup-steps 2 --min-lr 1e-5 "
        "--eval-data synthetic --eval-every 3 --checkpoint-every 4 --json"
    )
    whole = f"--checkpoint-dir state --log whole.jsonl --trace traces {options}"
    code, out, err = executing("a.json", *whole.split())
    assert code == 0, err
    shutil.rmtree(tmp_path / "state" / "step-000006")
    shutil.copy(tmp_path / "whole.jsonl", tmp_path / "again.jsonl")
    again = f"--checkpoint-dir state --log again.jsonl --resume {options}"
    assert executing("a.json", *again.split())[0] == 0
    first, second = (
        _numbers(tmp_path / f"{name}.jsonl") for name in ("whole", "again")
    )
    assert first == second
    assert [row["step"] for row in first] == [1, 2, 3, 3, 4, 5, 6, 6]
    document = json.loads(out)
    assert [one["step"] for one in document["evaluations"]] == [3, 6]
    trace = json.loads((tmp_path / "traces" / "rank-0.json").read_text())
    assert any("addmm" in event.get("name", "") for event in trace["traceEvents"])


def test_a_resumed_run_has_its_own_rate_and_says_what_else_is_unlike(
    executing: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--model gpt-tiny --seq-len 32 --global-batch 2 --gpus 1 --precision fp32"
    assert simulate([*small.split(), "--out", "a.json"]) == 0
    (tmp_path / "words.txt").write_text("once upon a time " * 20)
    options = "--device cpu --checkpoint-dir state --log run.jsonl --json"
    begun = f"{options} --steps 1 --lr 1e-2 --seed 5 --data words.txt"
    assert executing("a.json", *begun.split())[0] == 0
    for asked, said in (
        ("--steps 2 --lr 1e-3 --seed 5 --data words.txt", None),
        ("--steps 3 --lr 1e-3 --data words.txt", "a run with --seed 5, this one has"),
        ("--steps 4 --lr 1e-3 --seed 0", "--data synthetic is not what"),
    ):
        code, _, err = executing("a.json", *f"{options} --resume {asked}".split())
        assert code == 0, err
        warned = [line for line in err.splitlines() if "other data" in line]
        assert [str(said) in line for line in warned] == [True] * bool(said)
    rates = [row["learning_rate"] for row in _numbers(tmp_path / "run.jsonl")]
    assert rates == [1e-2, 1e-3, 1e-3, 1e-3]


@pytest.mark.parametrize("end", [KeyboardInterrupt, RunFailed])
def test_a_run_that_is_ended_leaves_no_half_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    file, state = tmp_path / "layout.json", tmp_path / "state"
    layout = spell_out(CASES["dp2"], job("gpt").graph, BATCH)
    write_layout(file, job("gpt"), "local", layout)

    def ended(*_: Any, **__: Any) -> None:
        (begin(state, 7) / "__0_0.distcp").touch()
        raise end

    monkeypatch.setattr(run, "launch", ended)
    with pytest.raises(end):
        prepare(replace(run_options(file), checkpoint_dir=state)).execute()
    assert list(state.iterdir()) == []


def test_a_run_that_diverges_ends_and_says_when(
    executing: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--model gpt-tiny --seq-len 32 --global-batch 2 --gpus 1 --precision fp32"
    assert simulate([*small.split(), "--out", "a.json"]) == 0
    wild = "--device cpu --steps 5 --lr 10 --clip 0 --weight-decay 1 --log run.jsonl"
    code, out, err = executing("a.json", *wild.split(), "--json")
    document = json.loads(out)
    losses, stopped = document["losses"], document["stopped"]
    assert (code, document["layout"]) == (1, None)
    assert stopped["step"] == len(losses) < 5
    priced_elsewhere, *said = err.splitlines()
    assert "trained on this machine's cpu" in priced_elsewhere
    assert len(said) == 1
    assert f"the {stopped['not_finite']} of step {len(losses)} is not finite" in said[0]
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert not any("NaN" in line or "Infinity" in line for line in lines)
    assert [json.loads(line)["loss"] for line in lines] == losses
    code, out, _ = executing("a.json", *wild.split())
    assert code == 1
    assert "steps in" in out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--elastic 0", "--elastic"),
        ("--elastic 3:2", "write the least machines"),
        ("--elastic two", "write the least machines"),
        ("--timeout 0", "--timeout"),
        ("--timeout nan", "--timeout"),
        ("--on-nan pray", "--on-nan"),
        ("--max-restarts -1", "--max-restarts"),
    ],
)
def test_options_of_failures_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], asked: str, said: str
) -> None:
    assert execute.run(["layout.json", *asked.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_restarts_are_asked_for_or_come_with_machines_that_change() -> None:
    plain = run_options(Path("layout.json"))
    assert (plain.restarts, plain.machines) == (0, (1, 1))
    elastic = replace(plain, nnodes=4, elastic=(2, None))
    assert (elastic.restarts, elastic.machines) == (100, (2, 4))
    assert replace(elastic, max_restarts=3, elastic=(2, 8)).restarts == 3
    assert replace(elastic, elastic=(2, 8)).machines == (2, 8)


def _numbers(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    timings = ("seconds", "tokens_per_s_per_gpu")
    return [{k: v for k, v in row.items() if k not in timings} for row in rows]
