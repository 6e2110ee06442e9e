"""The family that a `config.json` is of: its reader, by `model_type`.

Keys and their defaults are those of the `configuration_*.py` of transformers 4.5x, and
of 5.x where those are new.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from profiles.errors import InvalidSpec
from profiles.files import shown
from profiles.models.huggingface.decoders import MIXTURES, PLAIN
from profiles.models.huggingface.encoders import ENCODERS, llava
from profiles.models.huggingface.hybrid import HYBRIDS
from profiles.models.huggingface.more_decoders import MORE
from profiles.models.huggingface.rotary import Config, Read
from profiles.models.huggingface.unknown import NEEDED, reads, unknown
from profiles.models.spec import ModelSpec

TEXT: Final[dict[str, Callable[[Config], Read]]] = {
    **PLAIN,
    **MIXTURES,
    **HYBRIDS,
    **MORE,
}


def is_config(document: object) -> bool:
    return isinstance(document, dict) and "model_type" in document


def read_config(document: object, *, what: str) -> tuple[ModelSpec, int, list[str]]:
    """The spec that a config describes, the longest sequence that it is for, and what
    was assumed beyond it.

    Raises Unsupported for other model types, InvalidFile naming a missing or wrong
    key, InvalidSpec for sizes that cannot exist.
    """
    config = Config(document, what)
    try:
        spec, longest = _read(READERS, config)
    except InvalidSpec as error:
        raise InvalidSpec(f"{what}: {error}") from error
    return spec, longest, config.assumed


def _read(readers: dict[str, Callable[[Config], Read]], config: Config) -> Read:
    kind = config.get("model_type", str)
    if kind in readers:
        return readers[kind](config)
    if reads(config):
        return unknown(config)
    raise config.unsupported(
        f"model_type {shown(kind)}",
        f"supported: {', '.join(readers)}; others that have {', '.join(NEEDED)} are "
        "read as the decoder that their keys suggest",
    )


READERS: Final[dict[str, Callable[[Config], Read]]] = {
    **TEXT,
    **ENCODERS,
    "llava": partial(llava, text=partial(_read, TEXT)),
}
