"""The map of the house, kept: facts → prices → choices → deeds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import networkx as nx
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "profiles": {"profiles"},
    "costmodel": {"profiles", "costmodel"},
    "planner": {"profiles", "costmodel", "planner"},
    "runtime": {"profiles", "costmodel", "runtime"},
}
PUBLIC = {
    "profiles": set[str](),
    "costmodel": {"estimate"},
    "planner": {"plan"},
    "runtime": {"parallelize"},
}
MEASURES_OR_TRACES = ("profiles/measure/", "profiles/models/trace.py")
LONGEST_FILE = 400


def rooms_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def texts() -> Iterator[Path]:
    """Every file that a person reads and this project keeps."""
    left_out = {".git", ".venv", "build", "dist", "__pycache__"}
    kinds = {".py", ".md", ".cfg", ".toml", ".txt", ".json", ".csv", ".yml", ".yaml"}
    names = {"Makefile", "LICENSE", "run", ".gitignore"}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in left_out and not name.endswith(("_cache", ".egg-info"))
        ]
        for name in files:
            if Path(name).suffix in kinds or name in names:
                yield Path(folder, name)


def dotted(room: Path) -> str:
    parts = room.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.AST) -> Iterator[str]:
    """Names that the import *node* may load, rooms and what is in them alike."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        where = node.module or ""
        yield where
        yield from (f"{where}.{alias.name}" for alias in node.names)


def at_import_time(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a room is imported: functions' bodies do not."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from at_import_time(node)


def parsed(room: Path) -> ast.Module:
    return ast.parse(room.read_text(encoding="utf-8"))


ROOMS = [room for package in MAY_IMPORT for room in rooms_of(package)]
each_room = pytest.mark.parametrize("room", ROOMS, ids=dotted)
each_package = pytest.mark.parametrize("package", MAY_IMPORT)


@each_room
def test_arrows_point_up_the_map(room: Path) -> None:
    package = dotted(room).partition(".")[0]
    names = {
        name.partition(".")[0]
        for node in ast.walk(parsed(room))
        for name in imported(node)
    }
    assert names & MAY_IMPORT.keys() <= MAY_IMPORT[package]
    relative = [
        node
        for node in ast.walk(parsed(room))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative, "rooms are imported by their full name"


@each_package
def test_rooms_do_not_lean_on_each_other_in_a_circle(package: str) -> None:
    rooms = {dotted(room): room for room in rooms_of(package)}
    arrows = nx.DiGraph(
        (name, other)
        for name, room in rooms.items()
        for node in ast.walk(parsed(room))
        for other in imported(node)
        # a package's own face opens its rooms, and rooms may read its version
        if other in rooms and package not in (name, other)
    )
    assert list(nx.simple_cycles(arrows)) == []


@each_room
def test_a_room_is_small_documented_and_finished(room: Path) -> None:
    assert len(room.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    if room.stat().st_size:
        assert ast.get_docstring(parsed(room)), "what does this room hold?"


@each_room
def test_planning_does_not_need_torch(room: Path) -> None:
    package = dotted(room).partition(".")[0]
    if package == "runtime":
        return
    inside = room.relative_to(ROOT).as_posix().startswith(MEASURES_OR_TRACES)
    nodes = at_import_time(parsed(room)) if inside else ast.walk(parsed(room))
    loaded = {name.partition(".")[0] for node in nodes for name in imported(node)}
    assert "torch" not in loaded


def test_importing_every_room_of_planning_leaves_torch_out(run: Run) -> None:
    rooms = [
        dotted(room)
        for room in ROOMS
        if not dotted(room).startswith("runtime") and room.stem != "__main__"
    ]
    assert _loaded(run, rooms) & {"torch", "runtime"} == set()


def test_training_loads_no_planner_and_no_solver(run: Run) -> None:
    rooms = [dotted(room) for room in rooms_of("runtime") if room.stem != "__main__"]
    assert _loaded(run, rooms) & {"planner", "pulp", "highspy"} == set()


@each_package
def test_a_package_alone_loads_next_to_nothing(run: Run, package: str) -> None:
    heavy = {"numpy", "scipy", "networkx", "pulp", "click", *MAY_IMPORT} - {package}
    assert _loaded(run, [package]) & heavy == set()


def _loaded(run: Run, rooms: list[str]) -> set[str]:
    lines = [f"import {room}" for room in rooms]
    script = "\n".join(["import sys", *lines, "print(*sys.modules)"])
    done = run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


@each_package
def test_the_front_door_is_the_whole_house(run: Run, package: str) -> None:
    """A package defines nothing public but `__all__`."""
    script = (
        f"import {package} as it\n"
        "print(*it.__all__)\n"
        "own = {name for name, value in vars(it).items()\n"
        "       if getattr(value, '__module__', None) == it.__name__}\n"
        "print(*sorted(name for name in own if not name.startswith('_')))"
    )
    public, others = run("python", "-c", script).stdout.splitlines()
    assert set(public.split()) == PUBLIC[package]
    assert set(others.split()) <= PUBLIC[package]


@pytest.mark.parametrize(
    ("package", "name"),
    [("costmodel", "estimate"), ("planner", "plan"), ("runtime", "parallelize")],
)
def test_a_room_does_not_hide_the_function_of_its_name(
    run: Run, package: str, name: str
) -> None:
    """Importing a room sets its name on the package, where `__getattr__` is silent."""
    if not (ROOT / package / f"{name}.py").exists():
        return
    script = (
        f"import {package}, {package}.{name}\n"
        f"from {package} import {name}\n"
        f"assert callable({name}) and {name} is {package}.{name}\n"
    )
    assert run("python", "-c", script).stderr == ""


def test_no_test_asserts_a_constant() -> None:
    for test in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(parsed(test)):
            empty = isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)
            assert not empty, f"{test.name}:{getattr(node, 'lineno', 0)}"


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_file_speaks_of_a_machine() -> None:
    folders = "|".join(("work", "home", "root", "tmp", "Users"))
    machine = re.compile(rf"(?<![\w.~:/>-])/(?:{folders})/[\w.]")
    sibling = ".." + "/shared"
    for file in texts():
        text = file.read_text(encoding="utf-8")
        assert not machine.search(text), file
        if file != ROOT / ".ci" / "run":
            assert sibling not in text, file
