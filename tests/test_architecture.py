"""The architecture holds: facts → prices → choices → deeds, in sub-packages."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

import networkx as nx
import pytest

from docs.architecture import (
    arrows,
    charter,
    dotted,
    drawing,
    import_statements,
    imports,
    modules,
    parsed,
    part,
    size,
    sub_packages,
)

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "profiles": {"profiles"},
    "costmodel": {"profiles", "costmodel"},
    "planner": {"profiles", "costmodel", "planner"},
    "runtime": {"profiles", "costmodel", "runtime"},
}
PUBLIC = {
    "profiles": {"load_cluster", "load_model"},
    "costmodel": {"calibrate", "estimate", "simulate"},
    "planner": {"Plan", "plan"},
    "runtime": {"parallelize"},
}
MEASURES = ("profiles/measure/",)
TRACES = "profiles/trace/"  # loaded where a module of one's own is named
MOST_MODULES = 15  # in a sub-package
MOST_LINES = 60  # of a function
MOST_PARAMETERS = 8
MOST_FIELDS = 25  # of a class
# What is still larger. Nothing may join this list, and what is mended leaves it.
STILL_LARGE = {
    "costmodel.options.pins.Pins",
    "profiles.models.spec.decoder.DecoderSpec",
}


def modules_of(package: str) -> list[Path]:
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


def imported(node: ast.AST) -> Iterator[str]:
    """Names that the import *node* may load, modules and what is in them alike."""
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


MODULES = [module for package in MAY_IMPORT for module in modules_of(package)]
each_package = pytest.mark.parametrize("package", MAY_IMPORT)


def loaded_by(nodes: Iterable[ast.AST]) -> set[str]:
    """The packages that the imports among *nodes* load."""
    return {name.partition(".")[0] for node in nodes for name in imported(node)}


def test_arrows_point_up_the_map() -> None:
    for module in MODULES:
        names = loaded_by(import_statements(module)) & MAY_IMPORT.keys()
        assert names <= MAY_IMPORT[dotted(module).partition(".")[0]], module


def test_rooms_are_imported_by_their_full_name() -> None:
    relative = [
        module
        for module in MODULES
        for node in import_statements(module)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_no_module_is_called_after_a_participle_or_an_adverb() -> None:
    vague = {"told", "seen", "heard", "known", "kept", "apart", "beside", "asked"}
    vague |= {"around", "spoken", "words", "found", "away", "held", "made_again"}
    assert {name.rpartition(".")[2] for name in modules()} & vague == set()


def test_the_arrows_between_sub_packages_form_no_circle() -> None:
    assert list(nx.simple_cycles(arrows())) == []


@each_package
def test_modules_do_not_import_each_other_in_a_circle(package: str) -> None:
    graph = nx.DiGraph(
        (name, other)
        for name in modules()
        for other, _ in imports(name)
        if name.partition(".")[0] == other.partition(".")[0] == package
        and part(name) == part(other) != name  # a face imports what it shows
    )
    assert list(nx.simple_cycles(graph)) == []


def test_other_sub_packages_are_imported_by_their_face() -> None:
    inner = {
        (name, other)
        for name in modules()
        for other, node in imports(name)
        if part(other) not in (other, part(name), getattr(node, "module", None))
        and not part(name).startswith(f"{part(other)}.")
        and not part(other).startswith(f"{part(name)}.")
    }
    assert inner == set(), "import what the sub-package's __init__ names"


def test_a_face_names_what_others_import() -> None:
    """Modules apart, which are imported by their own names."""
    wanted = {
        (node.module, alias.name)
        for module in MODULES
        for node in import_statements(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.{alias.name}" not in modules()
    }
    for name in sub_packages():
        face = import_module(name)
        public = set(getattr(face, "__all__", ()))
        assert {one for where, one in wanted if where == name} <= public, name
        assert [one for one in public if not hasattr(face, one)] == [], name
        assert not hasattr(face, "what_is_not_there"), name


def test_a_sub_package_has_a_charter_and_few_modules() -> None:
    for name in sub_packages():
        assert charter(name).endswith("."), f"what is {name} for, in a sentence?"
        assert size(name) <= MOST_MODULES, name


def test_design_shows_the_arrows_as_they_are() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert drawing() in page, "run python -m docs.regenerate"


def test_a_module_says_what_it_is() -> None:
    silent = [one for one in MODULES if not ast.get_docstring(parsed(one))]
    assert silent == [], "what do these modules hold?"


def large(module: Path) -> Iterator[str]:
    """The functions and classes of a module that are larger than they may be."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            names = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            parameters = [one for one in names if one.arg not in ("self", "cls")]
            if lines > MOST_LINES or len(parameters) > MOST_PARAMETERS:
                yield f"{dotted(module)}.{node.name}"
        elif isinstance(node, ast.ClassDef):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            if len(fields) > MOST_FIELDS:
                yield f"{dotted(module)}.{node.name}"


def test_functions_and_classes_are_small() -> None:
    assert {name for module in MODULES for name in large(module)} == STILL_LARGE


def test_planning_does_not_need_torch() -> None:
    """Nor where it measures, before it does; to trace a module needs it."""
    needs = []
    for module in MODULES:
        where = module.relative_to(ROOT).as_posix()
        nodes: Iterable[ast.AST] = import_statements(module)
        if where.startswith(TRACES):
            continue
        if where.startswith(MEASURES):
            nodes = at_import_time(parsed(module))
        if not where.startswith("runtime/") and "torch" in loaded_by(nodes):
            needs.append(where)
    assert needs == []


def test_importing_every_room_of_planning_leaves_torch_out(run: Run) -> None:
    names = [
        dotted(module)
        for module in MODULES
        if not dotted(module).startswith(("runtime", "profiles.trace."))
        and module.stem != "__main__"
    ]
    assert _loaded(run, names) & {"torch", "runtime"} == set()


def test_training_loads_no_planner_and_no_solver(run: Run) -> None:
    names = [dotted(one) for one in modules_of("runtime") if one.stem != "__main__"]
    assert _loaded(run, names) & {"planner", "pulp", "highspy"} == set()


@each_package
def test_a_package_alone_loads_next_to_nothing(run: Run, package: str) -> None:
    heavy = {"numpy", "scipy", "networkx", "pulp", "click", *MAY_IMPORT} - {package}
    assert _loaded(run, [package]) & heavy == set()


def _loaded(run: Run, names: list[str]) -> set[str]:
    lines = [f"import {name}" for name in names]
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
