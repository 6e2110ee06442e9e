"""What is shipped: a wheel that holds all it needs, and pins that fit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("profiles", "costmodel", "planner", "runtime")
BUILD = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"


def setup() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirements() -> list[Requirement]:
    cfg = setup()
    extras = cfg["options.extras_require"]
    lines = cfg["options"]["install_requires"] + extras["dev"] + extras["docs"]
    return [Requirement(line) for line in lines.splitlines() if line]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """The wheel, built from a copy: building leaves traces."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    for file in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, source)
    (source / "tests").mkdir()
    built = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, str(source / "dist")],
        cwd=source,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return ZipFile(next((source / "dist").glob("meshwright-*.whl")))


def test_the_wheel_holds_the_four_packages_and_all_their_data(wheel: ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    kept = {
        file.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.suffix in (".py", ".json", ".csv", ".js", ".css")
        or file.name == "py.typed"
    }
    assert shipped == kept
    assert {f"{package}/py.typed" for package in PACKAGES} <= shipped


def test_the_wheel_says_what_it_is(wheel: ZipFile) -> None:
    folder = next(
        name.partition("/")[0] for name in wheel.namelist() if "-info/" in name
    )
    names = {Path(name).name for name in wheel.namelist() if name.startswith(folder)}
    assert "LICENSE" in names
    metadata = wheel.read(f"{folder}/METADATA").decode()
    for line in (
        "Name: meshwright",
        "License: Apache-2.0",
        "Requires-Python: <3.15,>=3.11",
        'Requires-Dist: torch<2.14,>=2.11; extra == "runtime"',
    ):
        assert f"\n{line}\n" in metadata
    scripts = ConfigParser()
    scripts.read_string(wheel.read(f"{folder}/entry_points.txt").decode())
    assert dict(scripts["console_scripts"]) == {
        "profile": "profiles.__main__:main",
        "simulate": "costmodel.__main__:main",
        "plan": "planner.__main__:main",
        "execute": "runtime.__main__:main",
        "meshwright": "profiles.commandline.main:main",
    }


def test_the_installed_wheel_answers(wheel: ZipFile, run: Run, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    wheel.extractall(site)
    (elsewhere / "costmodel").mkdir(parents=True)
    (elsewhere / "costmodel" / "__init__.py").write_text("raise SystemExit('theirs')")
    script = "import costmodel, profiles; print(profiles.__file__)"
    for argv in (("-m", "profiles", "--version"), ("-m", "runtime", "--version")):
        done = run("python", *argv, cwd=elsewhere, env={"PYTHONPATH": str(site)})
        assert (done.returncode, done.stderr) == (0, "")
    where = run("python", "-c", script, cwd=site, env={"PYTHONPATH": str(site)}).stdout
    assert Path(where.strip()).is_relative_to(site)


@pytest.mark.parametrize("need", requirements(), ids=str)
def test_every_requirement_is_pinned_to_a_version_that_it_allows(
    need: Requirement,
) -> None:
    pinned = Version(pins()[canonicalize_name(need.name)])
    assert pinned in need.specifier
    assert pinned.local is None
    assert any(part.operator == ">=" for part in need.specifier)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [("execute", ("layout.json",)), ("profile", ("--out", "samples.json"))],
)
def test_without_torch_what_needs_it_says_so(
    run: Run, program: str, arguments: tuple[str, ...]
) -> None:
    package = {"execute": "runtime", "profile": "profiles"}[program]
    script = (
        "import sys; sys.modules['torch'] = None\n"
        f"from {package}.__main__ import main; sys.exit(main({[*arguments]}))"
    )
    done = run("python", "-c", script)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "needs the package torch" in line
    assert "pip install 'meshwright[runtime]'" in line


def test_the_license_and_the_changelog_are_there() -> None:
    license_text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in license_text
    assert "END OF TERMS AND CONDITIONS" in license_text
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n## [Unreleased]\n" in changes


@pytest.mark.parametrize("goal", ["plan", "test"])
def test_make_says_which_python_it_needs(tmp_path: Path, goal: str) -> None:
    other = tmp_path / "python"
    other.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1\nexit 1\n')
    other.chmod(0o755)
    for python, said in (
        (other, "is Python 3.9.1"),
        ("python-nowhere", "is not there"),
    ):
        variables = [f"VENV={tmp_path / 'venv'}", f"PYTHON={python}"]
        done = subprocess.run(
            ["make", "-C", str(ROOT), *variables, goal],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert "3.11 to 3.14, as in: make PYTHON=python3.12" in done.stderr
        assert not (tmp_path / "venv").exists()


def test_the_check_that_lands_changes_is_a_script_that_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
