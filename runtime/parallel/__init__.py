"""Tensor, data, expert and context parallelism over a device mesh."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.parallel.collectives import all_reduce_from, sum_together
    from runtime.parallel.compressed_gradients import Signs, reduction_of
    from runtime.parallel.context_parallel import (
        Context,
        GatheredCore,
        RingCore,
        UlyssesCore,
    )
    from runtime.parallel.data_parallel import (
        Buffered,
        DataParallel,
        Sharded,
        Sharding,
        Unit,
    )
    from runtime.parallel.emulated_fp8 import multiply_emulated, round_at_random
    from runtime.parallel.explicit_sharding import split_layer_as
    from runtime.parallel.fp8 import multiply_in_eight_bits
    from runtime.parallel.fsdp import AfterEachW, AfterW
    from runtime.parallel.mesh import (
        Meshes,
        Replicas,
        context_group,
        device_mesh,
        one_axis,
        own_group,
        rank_grid,
        replicas,
        shard_mesh,
    )
    from runtime.parallel.tensor_parallel import (
        ColumnLinear,
        RowLinear,
        SplitMlp,
        partial_parameters,
    )
    from runtime.parallel.zero_plus import ZeroPlusGroups

__all__, __getattr__ = public(__name__, __file__)
