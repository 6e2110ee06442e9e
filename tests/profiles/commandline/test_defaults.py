"""A file of defaults: counts where the command line says nothing, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from costmodel.cli import simulate
from planner.cli import plan
from profiles.cli import profile
from runtime.cli import execute

TINY = """
[common]
model = "gpt-tiny"
gpus = 4
global-batch = 8

[simulate]
tp = 2
sequence_parallel = false
"""
Out = tuple[int, str, str]
Ask = Callable[..., Out]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESHWRIGHT_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asking(what: Any, *argv: str) -> Out:
        code = what.run(list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    return asking


def write(text: str, name: str = "meshwright.toml") -> str:
    Path(name).write_text(text)
    return name


def test_it_is_as_if_it_were_typed_and_is_named(ask: Ask) -> None:
    argv = ("--model", "gpt-tiny", "--gpus", "4", "--global-batch", "8", "--tp", "2")
    typed = json.loads(ask(simulate, *argv, "--no-sequence-parallel", "--json")[1])
    write(TINY)
    code, out, err = ask(simulate, "--json")
    found = json.loads(out)
    assert code == 0
    assert found.pop("defaults") == {
        "file": "meshwright.toml",
        "model": "gpt-tiny",
        "gpus": "4",
        "global_batch": "8",
        "tp": "2",
        "sequence_parallel": False,
    }
    assert found == typed
    said = "model gpt-tiny, gpus 4, global-batch 8, tp 2, sequence-parallel off"
    assert err == f"simulate: from meshwright.toml: {said}\n"


def test_the_command_line_wins(ask: Ask) -> None:
    write(TINY)
    _, out, err = ask(simulate, "--gpus", "8", "--tp", "1", "--json")
    found = json.loads(out)
    assert found["layout"]["summary"]["tp"] == 1
    assert found["defaults"].keys() == {
        *("file", "model", "global_batch", "sequence_parallel")
    }
    assert "gpus" not in err


def test_a_section_is_of_one_command_and_common_of_its_question(ask: Ask) -> None:
    write(TINY)
    _, out, _ = ask(plan, "--json")
    assert json.loads(out)["defaults"].keys() == {
        *("file", "model", "gpus", "global_batch")
    }
    write('[common]\ncluster = "dgx-h100"\n[profile]\nquick = true\n')
    code, _, err = ask(profile)  # whose --cluster is a file that it writes
    assert code == 2
    assert "--out is missing" in err
    assert "from meshwright.toml: quick" in err
    assert not Path("dgx-h100").exists()


def test_the_option_wins_over_the_variable_and_that_over_the_folder(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gpus(*argv: str) -> object:
        _, out, _ = ask(simulate, "--model", "gpt-tiny", "--json", *argv)
        return json.loads(out)["layout"]["summary"]["dp"]

    for name, number in (("meshwright.toml", 2), ("mine.toml", 4), ("other.toml", 8)):
        write(f"[common]\ngpus = {number}\n", name)
    assert gpus() == 2
    monkeypatch.setenv("MESHWRIGHT_CONFIG", "mine.toml")
    assert gpus() == 4
    assert gpus("--config", "other.toml") == 8
    monkeypatch.setenv("MESHWRIGHT_CONFIG", "/dev/null")
    assert gpus() == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[plan]\ntopp = 1", "[plan]: unknown option 'topp'; did you mean top"),
        ("[common]\nmodle = 'a'", "[common]: unknown option 'modle'; did you mean mod"),
        ("[plam]\ntop = 1", "'plam' is no section; there are [common], [plan]"),
        ("plan = 1", "'plan' is no section"),
        ("[plan]\ntop = true", "top=True must not be True or False"),
        ("[plan]\ntop = 2.5", "top=2.5: must be a whole number"),
        ("[plan]\ntop = -1", "must be a whole number"),
        ("[plan]\nexplain = 'yes'", "explain='yes' must be True or False"),
        ("[plan]\nobjective = 'speed'", "objective=speed: must be one of throughput"),
        ("[plan]\ntop = 1979-05-27", "top must be text, a number or a list"),
        ("[plan]\ntop = {a = 1}", "top must be text, a number or a list"),
        ("[plan]\ndiff = ['a']", "must be 2 values"),
        ("[plan]\njson = true", "unknown option 'json'"),
        ("[plan", "meshwright.toml"),
        ("[plan]\nout = '/etc/x.json'", "is outside this folder"),
        ("[plan]\nout = '../x.json'", "is outside this folder"),
        ("[common]\nmodel = 'os:getcwd'", "would import code"),
    ],
)
def test_what_is_wrong_is_one_line(ask: Ask, text: str, said: str) -> None:
    write(text)
    code, out, err = ask(plan, "--model", "gpt-tiny", "--gpus", "4")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert err.startswith("plan: ")
    assert ask(plan, "--help")[0] == 0


def test_a_file_that_is_named_must_be_there_and_may_say_any_path(ask: Ask) -> None:
    assert ask(plan, "--config", "none.toml")[0] == 2
    elsewhere = Path("deep").absolute()
    elsewhere.mkdir()
    write(f"{TINY}out = '{elsewhere / 'layout.json'}'\n", "mine.toml")
    assert ask(simulate, "--config", "mine.toml")[0] == 0
    assert (elsewhere / "layout.json").exists()


def test_it_does_not_contradict_what_says_the_question_itself(
    ask: Ask, root: Path
) -> None:
    layout = ("--model", "gpt-mini", "--gpus", "2", "--pp", "2", "--out", "a.json")
    assert ask(simulate, *layout)[0] == 0
    bare = json.loads(ask(simulate, "a.json", "--json")[1])
    present = root / "docs/examples/megatron_gpt3_175b.sh"
    table = root / "docs/asked-runs.csv"
    foreign = json.loads(ask(simulate, str(present), "--json")[1])
    write(TINY + "tokens = 1e9\n[plan]\ntp = 2\ntokens = 1e9\n")
    found = json.loads(ask(simulate, "a.json", "--json")[1])
    assert found.pop("defaults").keys() == {"file", "tokens"}
    found.pop("training")
    assert found == bare
    assert ask(simulate, "--runs", str(table), "--json")[0] == 0
    again = json.loads(ask(simulate, str(present), "--json")[1])
    assert again["layout"] == foreign["layout"]
    assert ask(plan, "--diff", "a.json", "a.json")[0] == 0
    assert ask(simulate, "gpt-mini", "--gpus", "8", "--json")[0] == 0
    typed = ask(simulate, "a.json", "--tp", "2")
    assert typed[0] == 2  # who types it contradicts the file


def test_what_is_of_training_is_not_asked_of_inference(ask: Ask) -> None:
    write("[common]\nframework = 'nemo'\n[plan]\nzero = 1\nexplain = true\ntop = 1\n")
    served = ("--inference", "llama3-8b", "--gpus", "1", "--cluster", "dgx-h100")
    code, out, err = ask(plan, *served, "--json")
    assert (code, json.loads(out)["defaults"].keys()) == (0, {"file", "top"})
    assert "from meshwright.toml: top 1" in err
    write("[simulate]\nzero = 1\ntokens = 1e9\n")
    assert ask(simulate, *served)[0] == 0
    assert ask(simulate, *served, "--zero", "1")[0] == 2


def test_execute_takes_its_own(ask: Ask) -> None:
    write("[execute]\nlr-schedule = 'cosin'\n")
    code, _, err = ask(execute, "layout.json")
    assert code == 2
    assert "did you mean cosine?" in err


def test_every_command_offers_it() -> None:
    for command in (plan, simulate, profile, execute):
        assert "--config" in command.get_help(click.Context(command))
