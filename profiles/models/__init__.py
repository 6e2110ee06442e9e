"""What is trained: specs, configurations and the operator graphs they make."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.models.catalog import model, names
    from profiles.models.configs import parse_config
    from profiles.models.decoder import (
        HEADS,
        JOINED,
        KEY,
        SORTED,
        TURNED,
        VALUE,
        combine_step,
        dispatch_step,
    )
    from profiles.models.families import remember, remembered
    from profiles.models.graph import (
        ENDS,
        EVERY_OPERATOR,
        MIXERS,
        PRODUCTS,
        SPLIT_KEY,
        SPLIT_MLP,
        SPLIT_QUERY,
        Block,
        Element,
        Kind,
        ModelGraph,
        Operator,
        Skip,
        Tensor,
        activation_function,
    )
    from profiles.models.job import OPTIMIZERS, Job, Model, module_model, parse_model
    from profiles.models.lora import ATTENTION, LINEAR_LAYERS, QUERY_KEY_VALUE, Adapters
    from profiles.models.param_count import operator_parameters, parameters
    from profiles.models.spec import (
        DecoderSpec,
        MlaSpec,
        ModelSpec,
        ModuleSpec,
        MoeSpec,
        Numerics,
        RecurrenceSpec,
        RopeScaling,
        SplitLayer,
        is_reference,
        spec_document,
    )

__all__, __getattr__ = public(__name__, __file__)
