"""What an operator costs on a rank: its shard, kernels, messages, saved tensors."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from costmodel.operators.activation_compression import (
        CAST_BITS,
        GROUP,
        Packed,
        Packer,
        packable,
        require_packable,
    )
    from costmodel.operators.attention import attention_kernel, attention_work
    from costmodel.operators.degrees import Degrees, held_experts, load, tokens
    from costmodel.operators.explicit_sharding import explicit_prices
    from costmodel.operators.host_overhead import apart_s, host_launches
    from costmodel.operators.loop_sharding import (
        ROWS,
        Step,
        dimension,
        gradient_made,
        local_bytes,
        loops_of,
        made,
        module_sharding,
        own_dims,
        redistribution,
        splittable,
        summands,
        summed_loops,
        wanted,
        weight_of,
    )
    from costmodel.operators.operator_cost import misaligned, operator_price
    from costmodel.operators.saved_tensors import beside, internal
    from costmodel.operators.sharding import (
        ON_TP,
        element_bytes,
        elements,
        entry_bytes,
        forward_collectives,
        parameters,
        product_shape,
        tensor_bytes,
    )
    from costmodel.operators.work import OnRank, OperatorPrice, Work

__all__ = [
    "CAST_BITS",
    "GROUP",
    "ON_TP",
    "ROWS",
    "Degrees",
    "OnRank",
    "OperatorPrice",
    "Packed",
    "Packer",
    "Step",
    "Work",
    "apart_s",
    "attention_kernel",
    "attention_work",
    "beside",
    "dimension",
    "element_bytes",
    "elements",
    "entry_bytes",
    "explicit_prices",
    "forward_collectives",
    "gradient_made",
    "held_experts",
    "host_launches",
    "internal",
    "load",
    "local_bytes",
    "loops_of",
    "made",
    "misaligned",
    "module_sharding",
    "operator_price",
    "own_dims",
    "packable",
    "parameters",
    "product_shape",
    "redistribution",
    "require_packable",
    "splittable",
    "summands",
    "summed_loops",
    "tensor_bytes",
    "tokens",
    "wanted",
    "weight_of",
]

__getattr__ = lazily(__name__, __file__)
