"""The family that a `config.json` is of: its reader, by `model_type`.

Keys and their defaults are those of the `configuration_*.py` of transformers 4.5x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from profiles.errors import InvalidSpec
from profiles.files import shown
from profiles.models.huggingface.decoders import MIXTURES, PLAIN
from profiles.models.huggingface.hybrid import HYBRIDS
from profiles.models.huggingface.rotary import Config, Read

READERS: Final[dict[str, Callable[[Config], Read]]] = {**PLAIN, **MIXTURES, **HYBRIDS}


def is_config(document: object) -> bool:
    return isinstance(document, dict) and "model_type" in document


def read_config(document: object, *, what: str) -> Read:
    """The spec that a config describes, and the longest sequence that it is for.

    Raises Unsupported for other model types, InvalidFile naming a missing or wrong
    key, InvalidSpec for sizes that cannot exist.
    """
    config = Config(document, what)
    kind = config.get("model_type", str)
    if kind not in READERS:
        raise config.unsupported(
            f"model_type {shown(kind)}", f"supported: {', '.join(READERS)}"
        )
    try:
        return READERS[kind](config)
    except InvalidSpec as error:
        raise InvalidSpec(f"{what}: {error}") from error
