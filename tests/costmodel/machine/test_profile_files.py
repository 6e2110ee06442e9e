"""`costmodel.machine.profile_files`, and `simulate --profile`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import asinh, log
from pathlib import Path
from typing import Any

import pytest

from costmodel.__main__ import main
from costmodel.machine.profile_files import cluster_called, cluster_name, read_profile
from profiles.errors import StaleProfile, Unsupported
from profiles.samples.files import content_hash, write_samples
from profiles.samples.table import OperatorKey, Sample, Samples
from tests.support.sampled import SOFTWARE, job, local, sample, samples

ASKED = ("--model", "gpt-tiny", "--gpus", "2", "--tp", "2")
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "samples.json", samples(job(), ranks=2))


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs `simulate`: its exit code, what it answered and what it complained of."""

    def asking(*argv: str) -> tuple[int, str, str]:
        code = main([*map(str, argv)], prog="simulate")
        said = capsys.readouterr()
        return code, said.out, said.err

    return asking


def written(path: Path, found: Samples) -> Path:
    write_samples(found, path)
    return path


def renamed(found: Samples, **changes: Any) -> Samples:
    """The same samples of another device or software."""
    operators: dict[OperatorKey, Sample] = {
        replace(key, **changes): one for key, one in found.operators.items()
    }
    return replace(found, operators=operators)


def test_the_price_is_the_measured_one(ask: Ask, file: Path) -> None:
    code, out, err = ask(*ASKED, "--cluster", "local", "--profile", file, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    shares = document["price_sources"]
    assert shares["measured"] > 0.7
    assert sum(shares.values()) == pytest.approx(1.0)
    assert document["assumed"]["precision"] == "fp32"
    assert "hidden" not in document["assumed"]["overlap"]
    assert document["assumed"]["overlap"].startswith("none")
    assert "quiet" in document["assumed"]["profile"]
    assert document["warnings"] == []
    code, out, err = ask(*ASKED, "--profile", file)
    assert "price " in out
    assert "% measured" in out


def test_without_a_profile_nothing_is_said_of_sources(ask: Ask) -> None:
    _, out, _ = ask(*ASKED)
    assert "measured" not in out
    _, out, _ = ask(*ASKED, "--json")
    assert json.loads(out)["price_sources"] is None


def test_a_profile_without_a_cluster_named_is_of_its_own_machine(
    ask: Ask, file: Path
) -> None:
    _, out, _ = ask(*ASKED, "--profile", file, "--json")
    assert json.loads(out)["assumed"]["cluster"] == "local"


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("--cluster", "local"), "pass --profile"),
        (("--profile", "no-such.json"), "cannot be read"),
        (("--profile", "{file}", "--cluster", "dgx-a100-80gb"), "samples are of"),
        (("--profile", "{file}", "--cluster", "locale"), "unknown cluster"),
        (("--profile", "{nowhere}", "--cluster", "local"), "does not describe"),
        (("--profile", "{broken}"), "not a file of samples"),
        (("--profile", "{file}", "--profile", "{newer}"), "torch-3.0"),
        (("--profile", "{file}", "--precision", "bf16"), "bf16"),
    ],
)
def test_a_wrong_question_is_exit_2_in_one_line(
    ask: Ask, file: Path, tmp_path: Path, argv: tuple[str, ...], reason: str
) -> None:
    known = samples(job(), ranks=2)
    names = {
        "file": file,
        "nowhere": written(tmp_path / "old.json", replace(known, cluster=None)),
        "newer": written(tmp_path / "new.json", renamed(known, software="torch-3.0")),
        "broken": tmp_path / "broken.json",
    }
    names["broken"].write_text("{}")
    code, out, err = ask(*ASKED, *(text.format(**names) for text in argv), "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_a_layout_file_remembers_its_samples(
    ask: Ask, file: Path, tmp_path: Path
) -> None:
    layout = tmp_path / "layout.json"
    _, asked, _ = ask(*ASKED, "--profile", file, "--out", layout, "--json")
    stored = json.loads(layout.read_text())
    assert stored["profiles"] == [content_hash(samples(job(), ranks=2))]
    assert stored["cluster"] == "local"
    _, again, err = ask(layout, "--profile", file, "--json")
    assert err == ""
    assert json.loads(again)["step_time_s"] == json.loads(asked)["step_time_s"]
    assert json.loads(again)["warnings"] == []
    assert json.loads(ask(layout, "--json")[1]) == json.loads(again)
    file.rename(tmp_path / "moved.json")
    assert ask(layout)[0] == 2  # whose machine is local?
    file = (tmp_path / "moved.json").rename(file)
    other = samples(job(), ranks=2, share=0.9)
    newer = written(tmp_path / "newer.json", other)
    _, _, err = ask(layout, "--profile", newer)
    assert "other samples" in err
    _, _, err = ask(layout, "--cluster", "cpu")
    assert "--profile" in err


def test_another_framework_may_run_other_operators(ask: Ask, file: Path) -> None:
    _, _, err = ask(*ASKED, "--profile", file, "--framework", "megatron-core")
    assert "megatron-core may run others" in err


def test_a_sweep_uses_the_samples(ask: Ask, file: Path) -> None:
    argv = ("--model", "gpt-tiny", "--gpus", "2", "--profile", file, "--json")
    code, out, _ = ask(*argv, "--sweep", "tp=1,2")
    assert code == 0
    for row in json.loads(out)["sweep"]:
        assert row["estimate"]["price_sources"]["measured"] > 0.5


def test_files_are_read_together(tmp_path: Path) -> None:
    one, two = samples(job(), 1), samples(job(), 2)
    noisy = {**one.machine, "noise": "noisy: others", "threads": "2", "torch": "2.13.0"}
    one = renamed(replace(one, machine=noisy), software=SOFTWARE.replace("1-", "2-"))
    two = replace(two, machine={**two.machine, "torch": "2.13.0", "host cpu": "x"})
    paths = [written(tmp_path / "1.json", one), written(tmp_path / "2.json", two)]
    found = read_profile(paths)
    assert found is not None
    assert found.hashes == (content_hash(one), content_hash(two))
    assert len(found.samples.operators) == len(one.operators) + len(two.operators)
    assert found.samples.cluster == local(2)
    assert found.samples.machine["noise"] == "noisy: others"
    assert found.warnings == ()
    hot = replace(two, machine={**two.machine, "host cpu": "y"})
    again = read_profile([paths[1], written(tmp_path / "3.json", hot)])
    assert again is not None
    assert again.warnings == ("the profiles differ in host cpu: x and y",)


def test_unlike_software_is_refused(tmp_path: Path) -> None:
    known = Samples(
        operators={key: sample(1.0) for key in list(samples(job(), 1).operators)[:1]}
    )
    other = renamed(known, software="torch-2.11.0/1-threads")
    paths = [written(tmp_path / "1.json", known), written(tmp_path / "2.json", other)]
    with pytest.raises(StaleProfile, match=r"torch-2\.11\.0"):
        read_profile(paths)


def test_the_cluster_that_is_meant(tmp_path: Path, file: Path) -> None:
    assert read_profile([]) is None
    profile = read_profile([file])
    assert profile is not None
    assert cluster_name(None, None) == "dgx-a100-80gb"
    assert cluster_name(None, profile) == "local"
    assert cluster_name("cpu", profile) == "cpu"
    assert cluster_called("LOCAL", profile.samples) == local(2)
    with pytest.raises(Unsupported, match="pass --profile"):
        cluster_called("local", None)


def test_a_noisy_profile_is_no_surer_than_its_machine_was(
    ask: Ask, tmp_path: Path
) -> None:
    """Samples may repeat well, and the machine have been half as fast an hour later: a
    spread of 59 % is 1.74 either way, not the 5 % of a quiet one."""
    halves = {}
    quiet = "quiet: calibration spread 2.0 %, drift 0.0 %, others used 0.0 % of the"
    noisy = "noisy: calibration spread 59.0 %, drift -9.0 %, others used 30.0 % of the"
    for note in (quiet, noisy, "noisy"):
        found = samples(job(), ranks=2)
        found = replace(found, machine={**found.machine, "noise": f"{note} cores"})
        file = written(tmp_path / "samples.json", found)
        document = json.loads(ask(*ASKED, "--profile", file, "--json")[1])
        low, high = document["interval"]["step_time_s"]
        assert low < document["step_time_s"] < high
        halves[note] = log(high / low) / 2
        share = document["price_sources"]["measured"]
    assert halves[quiet] == halves["noisy"] < 0.1
    sigma = 2 * asinh(0.59 / 2) / 1.349
    assert halves[noisy] >= share * 1.2815 * sigma > 0.3
