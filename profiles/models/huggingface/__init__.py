"""Specs from a Hugging Face `config.json`, by the keys and defaults it leaves out."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.models.huggingface.reader import READERS, is_config, read_config

__all__, __getattr__ = public(__name__, __file__)
