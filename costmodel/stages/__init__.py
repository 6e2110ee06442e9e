"""What a pipeline stage costs: seconds and bytes of its blocks."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.stages.block_batch import (
        SITE,
        AtomBook,
        Known,
        unique_rows,
    )
    from costmodel.stages.block_cost import (
        ATOM,
        Atom,
        Whole,
        atom,
        block_prices,
        kept_bytes,
        packed_in,
        recomputed_operators,
        run_again,
    )
    from costmodel.stages.contents import Contents, Part, contents_of, weight_bytes
    from costmodel.stages.data_parallelism import (
        DataParallel,
        data_parallel,
        degrees_of,
        exchanges,
        exposed_s,
        full_messages,
        one_zero,
        parallel_of,
        place_of,
        reduced_bytes,
        sharded_experts,
    )
    from costmodel.stages.device_memory import (
        CONTEXT_BYTES,
        FRAGMENTATION,
        KINDS,
        Memory,
        Peak,
        PeakContents,
        Process,
        StatePolicy,
        communicator_bytes,
        memories,
        memory,
        own_bytes,
        pipeline_buffers,
        secured_of_kept,
    )
    from costmodel.stages.host_memory import Away, away_of, capacity_bytes, states_bytes
    from costmodel.stages.islands import (
        Place,
        devices_by_rank,
        machines_of,
        placed,
        places_of,
        spans_of,
    )
    from costmodel.stages.layout_cost import (
        LayoutPricer,
        Placed,
        Reliability,
        devices_of,
        price_together,
    )
    from costmodel.stages.offload_cost import host_step, shard_bytes, tier_rates
    from costmodel.stages.optimizer_step import accumulated, unit_work, updated
    from costmodel.stages.pipeline_p2p import (
        Sender,
        Sends,
        boundary,
        layout_tied_sync,
        sends,
        shared_parameters,
        tied_sync,
        transfers,
    )
    from costmodel.stages.stage_cost import (
        WIDEST_WEIGHT,
        StageBytes,
        StagePrice,
        most_hidden_s,
        stage_bytes,
        stage_price,
    )

__all__, __getattr__ = public(__name__, __file__)
