"""Weights of Hugging Face: their names and ours, safetensors read and written."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.weights.config import config_of
    from runtime.weights.reader import load_weights
    from runtime.weights.writer import Export, exported, save_weights, weights_of

__all__, __getattr__ = public(__name__, __file__)
