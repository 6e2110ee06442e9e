"""Decoders as operator graphs, with experts, latent attention and recurrences."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.models.decoder.attention import TURNED
    from profiles.models.decoder.graph import decoder_graph, layer_kind
    from profiles.models.decoder.moe import SORTED, combine_step, dispatch_step
    from profiles.models.decoder.param_count import (
        LayerParameters,
        Parameters,
        decoder_parameters,
    )
    from profiles.models.decoder.recurrence import HEADS, JOINED, KEY, VALUE

__all__, __getattr__ = public(__name__, __file__)
