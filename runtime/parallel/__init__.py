"""Tensor, data, expert and context parallelism over a device mesh."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.parallel.collectives import all_reduce, all_reduce_from
    from runtime.parallel.data_parallel import (
        Buffered,
        DataParallel,
        Sharded,
        Sharding,
        Unit,
    )
    from runtime.parallel.explicit_sharding import split_layer_as
    from runtime.parallel.fp8 import multiply_in_eight_bits
    from runtime.parallel.fsdp import AfterEachW, AfterW, SummedShards
    from runtime.parallel.mesh import (
        Meshes,
        context_group,
        device_mesh,
        rank_grid,
        shard_mesh,
    )
    from runtime.parallel.replica_groups import Replicas, one_axis, replicas
    from runtime.parallel.tensor_parallel import (
        ColumnLinear,
        RowLinear,
        SplitMlp,
        partial_parameters,
    )
    from runtime.parallel.tied_weights import HEAD, TABLE, TiedTable

__all__, __getattr__ = public(__name__, __file__)
