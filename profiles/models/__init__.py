"""What is trained: specs, configurations and the operator graphs they make."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from profiles.models.attention import TURNED
    from profiles.models.catalog import model, names
    from profiles.models.decoder import activation_function
    from profiles.models.graph import (
        ENDS,
        PRODUCTS,
        Block,
        Element,
        Kind,
        ModelGraph,
        Operator,
        Tensor,
    )
    from profiles.models.job import OPTIMIZERS, Job
    from profiles.models.lora import ATTENTION, LINEAR_LAYERS, QUERY_KEY_VALUE, Adapters
    from profiles.models.model_file import Model, parse_model
    from profiles.models.moe import SORTED
    from profiles.models.numerics import Numerics, RopeScaling
    from profiles.models.param_count import parameters
    from profiles.models.spec import DecoderSpec, MlaSpec, MoeSpec, spec_document

__all__ = [
    "ATTENTION",
    "ENDS",
    "LINEAR_LAYERS",
    "OPTIMIZERS",
    "PRODUCTS",
    "QUERY_KEY_VALUE",
    "SORTED",
    "TURNED",
    "Adapters",
    "Block",
    "DecoderSpec",
    "Element",
    "Job",
    "Kind",
    "MlaSpec",
    "Model",
    "ModelGraph",
    "MoeSpec",
    "Numerics",
    "Operator",
    "RopeScaling",
    "Tensor",
    "activation_function",
    "model",
    "names",
    "parameters",
    "parse_model",
    "spec_document",
]

__getattr__ = lazily(__name__, __file__)
