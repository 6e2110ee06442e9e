"""A Hugging Face `config.json` → `Model`."""

from __future__ import annotations

from profiles.errors import InvalidSpec
from profiles.models.huggingface import read_config
from profiles.models.job import Model

LONGEST_DEFAULT = 8192  # a config gives the longest sequence served, not one trained


def parse_config(document: object, *, what: str, name: str) -> Model:
    """The model that a config describes, to be trained at up to 8192 tokens.

    Raises Unsupported for other model types, InvalidFile naming a missing or wrong
    key, InvalidSpec for sizes that cannot exist.
    """
    spec, longest, assumed = read_config(document, what=what)
    try:
        return Model(
            name=name,
            spec=spec,
            seq_len=min(longest, LONGEST_DEFAULT),
            source=what,
            notes="sequence and batch are assumed: a config does not give them",
            assumed=tuple(assumed),
        )
    except InvalidSpec as error:
        raise InvalidSpec(f"{what}: {error}") from error
