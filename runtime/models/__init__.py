"""Plain modules of the catalogue's models, and the operators they use."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.models.decoder import (
        Embedding,
        Layer,
        Stage,
        decoder_of,
        initialise,
    )
    from runtime.models.mlp import Mlp
    from runtime.models.moe import ExpertMlp, Experts, Held, Router, Stack, here
    from runtime.models.precision import Policy, autocast, policy, require_multiplied
    from runtime.models.products import (
        AS_GIVEN,
        Counts,
        Gradients,
        Product,
        Wanted,
    )
    from runtime.models.split_backward import (
        Deferral,
        Deferred,
        Work,
        defer_weight_grads,
        linear,
        multiplied_by,
        stacked,
    )

__all__, __getattr__ = public(__name__, __file__)
