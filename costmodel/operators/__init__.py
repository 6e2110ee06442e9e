"""What an operator costs on a rank: its shard, kernels, messages, saved tensors."""

from typing import TYPE_CHECKING

from profiles.lazy import public

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
    from costmodel.operators.gradient_compression import GradientCompression
    from costmodel.operators.host_overhead import (
        apart_s,
        host_launches,
        waited_s,
    )
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
    from costmodel.operators.saved_tensors import beside, core_of, internal
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

__all__, __getattr__ = public(__name__, __file__)
