"""What a pipeline stage costs: seconds and bytes of its blocks."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

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
        PeakContents,
        Process,
        StatePolicy,
        communicator_bytes,
        memory,
        own_bytes,
        pipeline_buffers,
        secured_of_kept,
    )
    from costmodel.stages.fsdp_units import unit_work
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
        devices_of,
        price_together,
    )
    from costmodel.stages.offload_cost import host_step, shard_bytes, tier_rates
    from costmodel.stages.optimizer_step import accumulated, updated
    from costmodel.stages.peak import Peak, memories
    from costmodel.stages.pipeline_p2p import (
        Sender,
        Sends,
        boundary_s,
        sends,
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
    from costmodel.stages.tied_weights import layout_tied_sync, tied_sync

__all__ = [
    "ATOM",
    "CONTEXT_BYTES",
    "FRAGMENTATION",
    "KINDS",
    "SITE",
    "WIDEST_WEIGHT",
    "Atom",
    "AtomBook",
    "Away",
    "Contents",
    "DataParallel",
    "Known",
    "LayoutPricer",
    "Memory",
    "Part",
    "Peak",
    "PeakContents",
    "Place",
    "Placed",
    "Process",
    "Sender",
    "Sends",
    "StageBytes",
    "StagePrice",
    "StatePolicy",
    "Whole",
    "accumulated",
    "atom",
    "away_of",
    "block_prices",
    "boundary_s",
    "capacity_bytes",
    "communicator_bytes",
    "contents_of",
    "data_parallel",
    "degrees_of",
    "devices_by_rank",
    "devices_of",
    "exchanges",
    "exposed_s",
    "full_messages",
    "host_step",
    "kept_bytes",
    "layout_tied_sync",
    "machines_of",
    "memories",
    "memory",
    "most_hidden_s",
    "one_zero",
    "own_bytes",
    "parallel_of",
    "pipeline_buffers",
    "place_of",
    "placed",
    "places_of",
    "price_together",
    "recomputed_operators",
    "reduced_bytes",
    "run_again",
    "secured_of_kept",
    "sends",
    "shard_bytes",
    "sharded_experts",
    "spans_of",
    "stage_bytes",
    "stage_price",
    "states_bytes",
    "tied_sync",
    "tier_rates",
    "transfers",
    "unique_rows",
    "unit_work",
    "updated",
    "weight_bytes",
]

__getattr__ = lazily(__name__, __file__)
