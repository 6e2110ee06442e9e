"""Models by name or from a file.

The catalogue is `profiles/data/models/*.json`, one file a family of models: `defaults`
that its `models` share, and `aliases`. A model file of a user holds one such entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from profiles.errors import InvalidQuestion, UnknownName
from profiles.files import decode, names_a_file, read_json, shown
from profiles.models.configs import parse_config
from profiles.models.families import remembered
from profiles.models.huggingface import is_config
from profiles.models.job import Model, module_model, parse_model
from profiles.models.spec import is_reference

__all__ = ["Model", "model", "names", "parse_model"]

MODELS = Path(__file__).parents[1] / "data" / "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file of the catalogue."""

    defaults: dict[str, Any]
    models: list[dict[str, Any]]
    aliases: dict[str, str]


def names() -> tuple[str, ...]:
    """Every model of the catalogue, without aliases."""
    entries, _ = _catalogue()
    return tuple(entries)


def model(name_or_path: str) -> Model:
    """A model by catalogue name (in any case), model file or Hugging Face config.

    Raises UnknownName with the nearest names, InvalidFile or InvalidSpec for a damaged
    file, Unsupported for foreign model types, and for `package.module:factory` that
    was not traced before (`profiles.load_model`).
    """
    entries, aliases = _catalogue()
    name = name_or_path.lower()
    name = aliases.get(name, name)
    if name in entries:
        return _known(name)
    if names_a_file(name_or_path):
        return _read(Path(name_or_path))
    if is_reference(name_or_path):
        return module_model(remembered(name_or_path))
    if ":" in name_or_path:
        raise InvalidQuestion(
            f"--model {name_or_path}: a module of your own is named "
            "package.module:factory, such as mine.models:unet"
        )
    raise UnknownName("model", name_or_path, {*entries, *aliases})


def _read(path: Path) -> Model:
    file = path / "config.json" if path.is_dir() else path
    document = read_json(file, what="model file")
    # A Hugging Face folder is called as its model is, the file in it never is.
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    what = f"model file {shown(file)}"
    if is_config(document):
        return parse_config(document, what=what, name=name or "custom")
    return parse_model(document, what=what, name=name or "custom")


@lru_cache(maxsize=64)
def _known(name: str) -> Model:
    entries, _ = _catalogue()
    return parse_model(entries[name], what=f"catalogue model {name}")


@lru_cache(maxsize=1)
def _catalogue() -> tuple[Mapping[str, dict[str, Any]], Mapping[str, str]]:
    """Entries by name and names by alias; entries stay undecoded until asked for."""
    entries: dict[str, dict[str, Any]] = {}
    aliases: dict[str, str] = {}
    for path in sorted(MODELS.glob("*.json")):
        file = decode(read_json(path, what="catalogue"), _File, what=f"{path.name}")
        aliases.update(file.aliases)
        for entry in file.models:
            entries[entry["name"]] = {**file.defaults, **entry}
    return entries, aliases
