"""What a shell completes, by click's protocol, in bash itself, and quickly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from costmodel.cli import simulate
from costmodel.machine import frameworks
from planner.cli import plan
from planner.options import SEARCHES as LISTED
from planner.search import SEARCHES
from profiles.cli import profile
from profiles.commandline.main import meshwright
from profiles.hardware import cluster_names, device_names
from profiles.models import names
from runtime.cli import execute

Run = Callable[..., subprocess.CompletedProcess[str]]


def completed(command: click.Command, *words: str) -> list[str]:
    """What click offers for the last of *words*."""
    called = command.name or ""
    shell = ShellComplete(command, {}, called, f"_{called.upper()}_COMPLETE")
    return [one.value for one in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("command", "words", "every"),
    [
        (plan, ("--model", ""), set(names())),
        (plan, ("",), set(names())),
        (simulate, ("--cluster", ""), set(cluster_names())),
        (simulate, ("--framework", ""), set(frameworks())),
        (profile, ("--import", "a", "--gpu", ""), set(device_names())),
        (meshwright, ("plan", "--framework", ""), set(frameworks())),
        (meshwright, ("devices", ""), set(device_names())),
        (meshwright, ("frameworks", ""), set(frameworks())),
        (plan, ("--search", ""), set(SEARCHES)),
    ],
)
def test_every_name_is_offered(
    command: click.Command, words: tuple[str, ...], every: set[str]
) -> None:
    assert set(completed(command, *words)) == every
    first = min(every)
    offered = completed(command, *words[:-1], first[:3])
    assert offered == [one for one in offered if one.startswith(first[:3])]
    assert first in offered


def test_commands_options_and_choices_are_offered() -> None:
    assert "--model" in completed(plan, "--mo")
    assert completed(execute, "--lr-sch") == ["--lr-schedule"]
    assert completed(plan, "--objective", "thr") == ["throughput"]
    assert completed(meshwright, "pl") == ["plan"]
    assert completed(meshwright, "plan", "--comp") == completed(plan, "--comp")
    assert set(LISTED) == set(SEARCHES)


def test_a_name_that_is_in_no_catalogue_is_completed_as_a_file() -> None:
    shell = ShellComplete(plan, {}, "plan", "_PLAN_COMPLETE")
    assert [one.type for one in shell.get_completions(["--model"], "./mi")] == ["file"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(run: Run, shell: str) -> None:
    done = run("plan", env={"_PLAN_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0
    assert "_PLAN_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("module", "variable", "words"),
    [
        ("planner", "_PLAN_COMPLETE", "plan --model"),
        ("costmodel", "_SIMULATE_COMPLETE", "simulate --cluster"),
        ("costmodel", "_SIMULATE_COMPLETE", "simulate --framework"),
        ("profiles", "_PROFILE_COMPLETE", "profile --gpu"),
        ("runtime", "_EXECUTE_COMPLETE", "execute --lr-schedule"),
    ],
)
def test_nothing_heavy_is_loaded(
    environment: dict[str, str], module: str, variable: str, words: str
) -> None:
    """Completing takes a tenth of a second, most of it Python's own start."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module],
        env={
            **environment,
            variable: "bash_complete",
            "COMP_WORDS": f"{words} ",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.stdout
    assert not loaded & {"numpy", "torch", "scipy", "rich", "pulp", "highspy"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_what_is_typed(environment: dict[str, str]) -> None:
    """The script of click, sourced, with bash's own variables of a completion."""
    script = """
        eval "$(_PLAN_COMPLETE=bash_source plan)" 2>/dev/null || exit 3
        COMP_WORDS=(plan --model llama3-7) COMP_CWORD=2
        $(complete -p plan | sed 's/.*-F \\([^ ]*\\).*/\\1/') plan llama3-7 --model
        echo "${COMPREPLY[@]}"
    """
    beside = Path(sys.executable).parent
    path = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "llama3-70b"), done.stderr
