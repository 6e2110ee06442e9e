"""Layout options of the command line; imports nothing heavy."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from costmodel.options.inference import (
        CACHE_FORMATS,
        QUANTIZATIONS,
        InferenceOptions,
        inference_options,
    )
    from costmodel.options.pins import (
        OVERLAPS,
        Pins,
        cuts_products,
        layout_options,
        pins_cut,
    )

__all__ = [
    "CACHE_FORMATS",
    "OVERLAPS",
    "QUANTIZATIONS",
    "InferenceOptions",
    "Pins",
    "cuts_products",
    "inference_options",
    "layout_options",
    "pins_cut",
]

__getattr__ = lazily(__name__, __file__)
