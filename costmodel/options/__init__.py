"""Layout options of the command line; imports nothing heavy."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.options.exports import ExportOptions, export_options
    from costmodel.options.inference import (
        CACHE_FORMATS,
        QUANTIZATIONS,
        W8A8,
        InferenceOptions,
        for_inference,
        inference_options,
    )
    from costmodel.options.pins import (
        OVERLAPS,
        Pins,
        cuts_products,
        layout_options,
        pins_cut,
    )
    from costmodel.options.sweep import SweepOptions, sweep_options
    from costmodel.options.training_run import RECOVERIES, RunOptions, run_options

__all__, __getattr__ = public(__name__, __file__)
