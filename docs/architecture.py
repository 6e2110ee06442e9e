"""The architecture, read off the code: sub-packages, their charters, and the arrows.

    python docs/architecture.py     print the drawing and the table of docs/design.md

A sub-package is a folder of modules, whose `__init__` holds its charter and its public
names; a module beside them, such as `planner/cli.py`, stands for itself. An arrow is an
import from one to another, those inside functions too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("profiles", "costmodel", "planner", "runtime")


def dotted(module: Path) -> str:
    """The name under which the file *module* is imported."""
    parts = module.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """All modules of the four packages, by name."""
    files = (file for name in PACKAGES for file in (ROOT / name).rglob("*.py"))
    return {dotted(file): file for file in sorted(files)}


@cache
def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def part(name: str) -> str:
    """The sub-package that holds the module *name*, or itself where none does."""
    if modules()[name].name == "__init__.py":
        return name
    parent = name.rpartition(".")[0]
    return name if parent in PACKAGES else parent


@cache
def import_statements(module: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Those of *module*, inside functions too."""
    nodes = ast.walk(parsed(module))
    return tuple(
        node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)
    )


def imports(name: str) -> Iterator[tuple[str, ast.AST]]:
    """The modules that *name* imports anywhere, each with the statement."""
    known = modules()
    for node in import_statements(known[name]):
        if isinstance(node, ast.Import):
            yield from (
                (alias.name, node) for alias in node.names if alias.name in known
            )
        elif node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known or node.module in known:
                    yield inner if inner in known else node.module, node


@cache
def arrows() -> nx.DiGraph:
    """From each sub-package to those that it imports."""
    return nx.DiGraph(
        (part(name), part(other))
        for name in modules()
        for other, _ in imports(name)
        if part(name) != part(other)
        and part(other) not in PACKAGES
        and part(name) not in PACKAGES
    )


def charter(name: str) -> str:
    """What the sub-package or module *name* says of itself, in a sentence."""
    text = ast.get_docstring(parsed(modules()[name])) or ""
    return " ".join(text.partition("\n\n")[0].split())


@cache
def sub_packages() -> tuple[str, ...]:
    """Folders of modules, packages left out, in the order in which they build on each
    other."""
    order = list(nx.topological_sort(arrows().reverse()))
    folders = {name for name, file in modules().items() if file.name == "__init__.py"}
    first = {name: PACKAGES.index(name.partition(".")[0]) for name in order}
    inside = folders & set(order)
    return tuple(sorted(inside, key=lambda one: (first[one], order.index(one))))


def size(name: str) -> int:
    """Modules of a sub-package."""
    files = modules()[name].parent.glob("*.py")
    return len([file for file in files if file.name != "__init__.py"])


def drawing() -> str:
    """The arrows inside each package as Mermaid draws them, those that follow from
    others left out."""
    lines = ["```mermaid", "flowchart LR"]
    graph = nx.transitive_reduction(arrows())
    for package in PACKAGES:
        inside = [name for name in sub_packages() if name.startswith(f"{package}.")]
        lines.append(f"  subgraph {package}")
        lines += [f"    {name}[{name.partition('.')[2]}]" for name in inside]
        lines.append("  end")
        lines += [
            f"  {name} --> {other}"
            for name in inside
            for other in sorted(graph.successors(name))
            if other in inside
        ]
    return "\n".join([*lines, "```"])


def table() -> str:
    """A row for each sub-package: what it is for."""
    rows = [f"| `{name}` | {charter(name)} |" for name in sub_packages()]
    return "\n".join(["| sub-package | what it is for |", "|---|---|", *rows])


if __name__ == "__main__":
    print(drawing(), table(), sep="\n\n")
