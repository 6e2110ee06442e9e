"""What is trained: specs, configurations and the operator graphs they make."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.models.attention import TURNED
    from profiles.models.catalog import model, names
    from profiles.models.graph import (
        ENDS,
        EVERY_OPERATOR,
        MIXERS,
        PRODUCTS,
        Block,
        Element,
        Kind,
        ModelGraph,
        Operator,
        Skip,
        Tensor,
    )
    from profiles.models.huggingface import parse_config
    from profiles.models.job import OPTIMIZERS, Job, Model, module_model, parse_model
    from profiles.models.layers import activation_function
    from profiles.models.lora import ATTENTION, LINEAR_LAYERS, QUERY_KEY_VALUE, Adapters
    from profiles.models.module import (
        ModuleSpec,
        is_reference,
        remember,
        remembered,
    )
    from profiles.models.moe import LAUNCHES, SORTED, WITHOUT_GRADIENT
    from profiles.models.param_count import parameters
    from profiles.models.recurrence import HEADS, JOINED, KEY, VALUE
    from profiles.models.spec import (
        DecoderSpec,
        MlaSpec,
        MoeSpec,
        Numerics,
        RecurrenceSpec,
        RopeScaling,
        spec_document,
    )

__all__, __getattr__ = public(__name__, __file__)
