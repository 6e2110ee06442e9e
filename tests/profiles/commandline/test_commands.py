"""Exit codes, JSON and help of a command, in process; and that it starts quickly."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.options.pins import Pins, layout_options
from profiles.commandline.commands import Command, command, premise, warn
from profiles.commandline.options import JobOptions, job_options
from profiles.commandline.terminal import emit_json
from profiles.errors import (
    Infeasible,
    InvalidSpec,
    NoAnswer,
    OutOfTime,
    RunFailed,
    Unmeasured,
)

Out = tuple[int, str, str]


@command("trial", example="trial --model gpt-13b --gpus 64")
@job_options
@layout_options
@click.option("--top", type=click.Choice(["a", "b"]), required=False)
def trial(job: JobOptions, pins: Pins, *, top: str | None, as_json: bool) -> None:
    """Try everything that commands share."""
    premise({"gpus": job.gpus})
    if as_json:
        emit_json({"gpus": job.gpus, "tp": pins.tp})
    else:
        click.echo(f"gpus {job.gpus} tp {pins.tp}")


def raising(error: BaseException) -> Command:
    @command("trial", example="trial")
    def fails(*, as_json: bool) -> None:
        premise({"gpus": 64})
        raise error

    return fails


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., Out]:
    def asking(what: Command, *argv: str) -> Out:
        code = what.run(list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    return asking


def test_options_left_out_are_none(answer: Callable[..., Out]) -> None:
    assert answer(trial) == (0, "gpus None tp None\n", "")


def test_json_is_the_only_thing_on_stdout(answer: Callable[..., Out]) -> None:
    code, out, err = answer(trial, "--gpus", "64", "--tp", "8", "--json")
    assert (code, json.loads(out), err) == (0, {"gpus": 64, "tp": 8}, "")


def test_version_names_the_command(answer: Callable[..., Out]) -> None:
    code, out, _ = answer(trial, "--version")
    assert code == 0
    assert out.startswith("trial (meshwright) ")


def test_help_groups_its_options_and_ends_with_the_example(
    answer: Callable[..., Out],
) -> None:
    code, out, _ = answer(trial, "--help")
    assert code == 0
    headings = re.findall(r"^(\w+):$", out, flags=re.MULTILINE)
    assert headings == ["Question", "Layout", "Options", "Example"]
    assert out.endswith("Example:\n  trial --model gpt-13b --gpus 64\n")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("--modle x", "no such option --modle; did you mean --model or --profile?"),
        ("-q", "no such option -q; see trial --help"),
        ("--tp", "option '--tp' requires an argument; see trial --help"),
        ("--tp -3", "--tp -3: must be a whole number >= 1, <= 10000000"),
        ("--zero 4", "--zero 4: must be a whole number from 0 to 3"),
        ("--json=1", "option '--json' does not take a value; see trial --help"),
        ("one", "got unexpected extra argument (one); see trial --help"),
        ("--top c", "--top 'c' is not one of 'a', 'b'."),
        (
            "--cp-kind rung",
            "--cp-kind rung: must be one of ring, all-gather, ulysses, rsa",
        ),
    ],
)
def test_a_wrong_question_is_one_line(
    answer: Callable[..., Out], argv: str, line: str
) -> None:
    code, out, err = answer(trial, *argv.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"trial: {line}")


def test_a_missing_argument_is_named(answer: Callable[..., Out]) -> None:
    @command("trial", example="trial FILE")
    @click.argument("layout_file")
    def reads(layout_file: str, *, as_json: bool) -> None:
        click.echo(layout_file)

    assert answer(reads) == (2, "", "trial: LAYOUT_FILE is missing; see trial --help\n")
    _, out, _ = answer(reads, "--help")
    assert "\nOptions:\n  --json " in out


def test_an_invalid_question_from_within(answer: Callable[..., Out]) -> None:
    wrong = raising(InvalidSpec("tp=3 does not divide heads=40;\nchoose\t8"))
    line = "trial: tp=3 does not divide heads=40; choose 8\n"
    assert answer(wrong) == (2, "", line)
    assert answer(wrong, "--json") == (2, "", line)


def test_no_without_json_is_one_line(answer: Callable[..., Out]) -> None:
    error = Infeasible("too big for 64 GPUs", constraint="memory", nearest="128 GPUs")
    assert answer(raising(error)) == (1, "", "trial: too big for 64 GPUs\n")


@pytest.mark.parametrize(
    ("error", "infeasible"),
    [
        (
            Infeasible("too big", constraint="memory", nearest="128 GPUs"),
            {"constraint": "memory", "nearest": "128 GPUs"},
        ),
        (OutOfTime("60 s passed"), {"constraint": "out of time", "nearest": None}),
        (RunFailed("rank 3 died"), {"constraint": "run failed", "nearest": None}),
        (Unmeasured("no curve"), {"constraint": "unmeasured", "nearest": None}),
    ],
)
def test_no_with_json_is_a_document(
    answer: Callable[..., Out], error: NoAnswer, infeasible: dict[str, str]
) -> None:
    code, out, err = answer(raising(error), "--json")
    assert (code, err) == (1, f"trial: {error}\n")
    assert json.loads(out) == {"gpus": 64, "layout": None, "infeasible": infeasible}


def test_a_warning_is_on_stderr(answer: Callable[..., Out]) -> None:
    @command("trial", example="trial")
    def warns(*, as_json: bool) -> None:
        warn("the batch was raised to 1,540")

    expected = "trial: warning: the batch was raised to 1,540\n"
    assert answer(warns) == (0, "", expected)


def test_a_function_may_leave_with_a_code(answer: Callable[..., Out]) -> None:
    assert answer(raising(click.exceptions.Exit(0))) == (0, "", "")
    assert answer(raising(click.Abort())) == (130, "", "trial: interrupted\n")


FLAGS = [flag for item in trial.params for flag in (*item.opts, *item.secondary_opts)]
VALUES = st.one_of(
    st.sampled_from(
        ["", "-1", "0", "1", "8", "1e9", "9" * 5000, "nan", "inf", "bf16", "none"]
    ),
    st.sampled_from(["grad,tp", "activations=0.5", "optimizer,", "=", "٣", "a\nb"]),
    st.text(max_size=20),
)
ARGV = st.lists(st.one_of(st.sampled_from(FLAGS), VALUES), max_size=8)


@given(argv=ARGV)
def test_any_words_get_an_answer_or_one_line(argv: list[str]) -> None:
    stdout, stderr = StringIO(), StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = trial.run(argv)
    out, err = stdout.getvalue(), stderr.getvalue()
    assert code in (0, 2)
    assert "Traceback" not in err
    if code == 2:
        assert out == ""
        assert err.count("\n") == 1
        assert err[:-1].isprintable()


def test_a_command_is_light_to_import(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    heavy = "{'rich', 'torch', 'numpy', 'scipy', 'networkx', 'pulp', 'highspy'}"
    modules = "profiles.commandline, costmodel.options"
    script = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    assert run("python", "-c", script).stdout == "[]\n"
