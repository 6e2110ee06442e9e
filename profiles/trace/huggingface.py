"""Inputs of Hugging Face's models, from their configuration."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

SEQ_LEN: Final = 2048  # at most, where nobody says
_AS_EAGER: Final[dict[str, Any]] = {
    "is_torchdynamo_exporting": lambda: False,
    "find_packed_sequence_indices": lambda position_ids: None,
}
_SEQUENCE_LABELS: Final = (
    "CausalLM",
    "LMHeadModel",
    "MaskedLM",
    "ConditionalGeneration",
)
_SEQUENCE_LABELS_TOO: Final = ("PreTraining", "TokenClassification")


def inputs_of_pretrained(
    module: nn.Module, seq_len: int | None, device: torch.device
) -> dict[str, Any] | None:
    """One sample for a Hugging Face model: tokens or pixels, and labels where it has a
    loss; None for another module. Numbers are drawn at random.
    """
    if not _is_pretrained(module):
        return None
    config: Any = module.config
    given: dict[str, Any] = {}
    tokens = seq_len or _length(config)
    if module.main_input_name == "pixel_values":
        size = config.image_size
        sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
        shape = (1, config.num_channels, *sides)
        given["pixel_values"] = torch.rand(shape, device=device)
    else:
        given["input_ids"] = _numbers((1, tokens), config.vocab_size, device)
    named = inspect.signature(module.forward).parameters
    if "labels" in named:
        given["labels"] = _labels(module, tokens, device)
    if "next_sentence_label" in named:
        given["next_sentence_label"] = _numbers((1,), 2, device)
    if "decoder_input_ids" in named and "labels" not in named:
        given["decoder_input_ids"] = _numbers((1, tokens), config.vocab_size, device)
    return given


@contextmanager
def as_in_training() -> Iterator[None]:
    """Attention masks as eager training has them: in an export transformers makes all
    of them, lest there be padding or several sequences in one, which a sample has
    not."""
    masks = sys.modules.get("transformers.masking_utils")
    before = {name: getattr(masks, name) for name in _AS_EAGER if hasattr(masks, name)}
    for name in before:
        setattr(masks, name, _AS_EAGER[name])
    try:
        yield
    finally:
        for name, one in before.items():
            setattr(masks, name, one)


def without_cache(module: nn.Module) -> nn.Module:
    """*module* without the key-value cache of its decoder, as in training."""
    for one in module.modules() if _is_pretrained(module) else ():
        config: Any = getattr(one, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False
    return module


def shifts_labels(module: nn.Module) -> bool | None:
    """Whether a Hugging Face model's labels are its tokens, which it shifts itself;
    False where they are others; None for another module."""
    if not _is_pretrained(module):
        return None
    return type(module).__name__.endswith(("CausalLM", "LMHeadModel"))


def _is_pretrained(module: nn.Module) -> bool:
    library = sys.modules.get("transformers")
    return library is not None and isinstance(module, library.PreTrainedModel)


def _labels(module: Any, tokens: int, device: torch.device) -> torch.Tensor:
    """A token each, or a class a sample."""
    name = type(module).__name__
    if name.endswith((*_SEQUENCE_LABELS, *_SEQUENCE_LABELS_TOO)):
        classes = getattr(module.config, "vocab_size", 0)
        if name.endswith("TokenClassification"):
            classes = module.config.num_labels
        return _numbers((1, tokens), classes, device)
    return _numbers((1,), module.config.num_labels, device)


def _numbers(shape: tuple[int, ...], below: int, device: torch.device) -> torch.Tensor:
    return torch.randint(below, shape, device=device)


def _length(config: Any) -> int:
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    known = [getattr(config, name, None) for name in names]
    return min([one for one in known if isinstance(one, int) and one > 0] + [SEQ_LEN])
