"""A model as blocks of operators in named dimensions, whatever its family."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.models.graph.layers import (
        ROWS,
        STREAM,
        Style,
        activation_function,
        at_rows,
        attention_core,
        cross_entropy,
        logits_and_loss,
        lookup,
        mlp_steps,
        norm_step,
        product,
        residual_step,
        rotary_step,
        stream,
    )
    from profiles.models.graph.model_graph import (
        ENDS,
        EVERY_OPERATOR,
        Block,
        ModelGraph,
        Skip,
    )
    from profiles.models.graph.operator import (
        MIXERS,
        PRODUCTS,
        SPLIT_KEY,
        SPLIT_MLP,
        SPLIT_QUERY,
        Element,
        Kind,
        Operator,
        Tensor,
    )

__all__, __getattr__ = public(__name__, __file__)
