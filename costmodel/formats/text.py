"""Files as text: shell scripts with arrays of arguments, YAML, TOML, JSON."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from costmodel.formats.setup import Run

WIDTH: Final = 88
_PLAIN: Final = re.compile(r"[A-Za-z_/.][\w./-]*", re.ASCII)
_WORDS_OF_YAML: Final = (
    "true",
    "false",
    "null",
    "yes",
    "no",
    "on",
    "off",
    "~",
    "y",
    "n",
)
_KEY: Final = re.compile(r"[\w-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Written:
    """Files by name, and the command that every node runs to train with them."""

    files: Mapping[str, str]
    command: Sequence[str] = field(default=())


def words_of(arguments: Mapping[str, Any]) -> list[str]:
    """`--name value` for each; True is a bare name, False and None are left out."""
    found: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        found.append(f"--{name}")
        if value is True:
            continue
        several = value if isinstance(value, tuple | list) else (value,)
        found += [_number(one) for one in several]
    return found


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def array(name: str, arguments: Mapping[str, Any]) -> str:
    """A shell array with a line for each argument."""
    lines = [
        "    " + " ".join(shlex.quote(word) for word in words_of({key: value}))
        for key, value in arguments.items()
        if value is not None and value is not False
    ]
    return "\n".join([f"{name}=(", *lines, ")"])


def nodes_of(run: Run) -> tuple[str, ...]:
    """Arguments of torchrun that say how many processes there are."""
    return ("--nproc-per-node", str(run.per_node), "--nnodes", str(run.nodes))


def rendezvous(run: Run) -> tuple[str, ...]:
    """Arguments of torchrun, for any number of nodes; variables as PyTorch's have."""
    return (
        *nodes_of(run),
        "--node-rank",
        "${NODE_RANK:-0}",
        "--master-addr",
        "${MASTER_ADDR:-localhost}",
        "--master-port",
        "${MASTER_PORT:-29500}",
    )


def script(run: Run, about: str, body: Sequence[str], command: Sequence[str]) -> str:
    """A shell script that ends in *command*; its words may name variables."""
    parts = [
        "#!/bin/bash",
        f"# {run.words}",
        *(f"# {line}" for line in about.splitlines()),
        "# Run it on every node, with NODE_RANK and MASTER_ADDR set.",
        "set -euo pipefail",
        "",
        *body,
        "",
        continued(command),
    ]
    return "\n".join(parts) + "\n"


def continued(words: Sequence[str]) -> str:
    """One command over lines that are not too long."""
    lines, line = [], ""
    for number, word in enumerate(words):
        begins = word.startswith("--") and number > 0
        if line and begins and len(line) + len(word) > WIDTH - 30:
            lines.append(line)
            line = f"    {word}"
        else:
            line = f"{line} {word}" if line else word
    return " \\\n".join([*lines, line])


def json_text(document: Any) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def yaml_text(document: Any, about: str = "") -> str:
    """Mappings, lists, numbers, truth values and text, as YAML 1.1 and 1.2 read them
    alike."""
    head = [f"# {line}" for line in about.splitlines()]
    return "\n".join([*head, *_yaml_lines(document, 0)]) + "\n"


def _yaml_lines(value: Any, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(value, Mapping):
        lines = []
        for key, one in value.items():
            if isinstance(one, Mapping | list | tuple) and one:
                lines += [f"{pad}{key}:", *_yaml_lines(one, depth + 1)]
            elif isinstance(one, str) and "\n" in one:
                lines.append(f"{pad}{key}: |")
                lines += [
                    f"{pad}  {line}".rstrip() for line in one.rstrip().split("\n")
                ]
            else:
                lines.append(f"{pad}{key}: {_yaml_scalar(one)}")
        return lines
    lines = []
    for one in value:
        if isinstance(one, Mapping):
            first, *rest = _yaml_lines(one, depth + 1)
            lines += [f"{pad}- {first.strip()}", *rest]
        else:
            lines.append(f"{pad}- {_yaml_scalar(one)}")
    return lines


def _yaml_scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML
        return value if plain else json.dumps(value)
    if isinstance(value, Mapping | list | tuple):
        return "{}" if isinstance(value, Mapping) else "[]"
    return str(value)


def toml_text(document: Mapping[str, Mapping[str, Any]], about: str = "") -> str:
    """Tables of plain values."""
    lines = [f"# {line}" for line in about.splitlines()]
    for name, table in document.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_toml_value(one)}" for key, one in table.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value)
