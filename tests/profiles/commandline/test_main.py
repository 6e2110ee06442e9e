"""The entry points, as real processes, in folders that are not ours."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from profiles import __version__
from profiles.commandline.main import VERBS, main

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[3]
READY = {
    verb: package
    for verb, (package, _) in VERBS.items()
    if (ROOT / package / "cli.py").exists()
}
SHADOW = "raise SystemExit('shadowed by the folder of the user')\n"


def hostile(folder: Path, own: str, kind: str) -> None:
    """Names of all our packages but *own*, made by somebody else.

    `python -m planner` in a folder with a `planner/` of its own is that folder's:
    Python has chosen before any line of ours runs.
    """
    for name in {package for package, _ in VERBS.values()} - {own}:
        if kind == "file":
            (folder / f"{name}.py").write_text(SHADOW)
            continue
        (folder / name).mkdir()
        if kind == "package":
            (folder / name / "__init__.py").write_text(SHADOW)
        (folder / name / "errors.py").write_text(SHADOW)


@pytest.mark.parametrize("kind", ["package", "folder", "file"])
@pytest.mark.parametrize("verb", READY)
def test_the_folder_of_the_user_does_not_shadow_ours(
    run: Run, tmp_path: Path, verb: str, kind: str
) -> None:
    hostile(tmp_path, READY[verb], kind)
    for argv in (("python", "-m", READY[verb]), (verb,), ("meshwright", verb)):
        done = run(*argv, "--version", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith(f"{verb} (meshwright) {__version__}\n")


def test_the_dispatcher_is_not_shadowed_either(run: Run, tmp_path: Path) -> None:
    hostile(tmp_path, "profiles", "package")
    for argv in (("meshwright",), ("python", "-m", "profiles.commandline.main")):
        done = run(*argv, "execute", "--version", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", READY)
def test_every_verb_has_help_with_an_example(run: Run, verb: str) -> None:
    done = run(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"\nExample:\n  {verb}" in done.stdout
    assert "--json" in done.stdout
    assert run("meshwright", verb, "--help").stdout.startswith(
        f"Usage: meshwright {verb} "
    )


@pytest.mark.parametrize("verb", ["execute", "meshwright execute"])
def test_a_layout_that_is_not_there_is_said(run: Run, verb: str) -> None:
    done = run(*verb.split(), "nowhere.json", "--steps", "3")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "nowhere.json cannot be read: no such file or directory" in done.stderr


def test_a_near_verb_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pln", "--gpus", "64"]) == 2
    expected = "meshwright: no such command pln; did you mean plan?\n"
    assert capsys.readouterr() == ("", expected)


def test_no_verb_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert all(verb in err for verb in VERBS)


def test_help_shows_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in VERBS)
    assert out.endswith("meshwright plan --model gpt-13b --gpus 64\n")
