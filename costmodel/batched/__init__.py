"""Many candidates priced as rows of arrays, with their lower bounds."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.batched.makespan import Runs, makespan_s
    from costmodel.batched.pricing import (
        ColumnPrices,
        after_passes_s,
        least_node_bytes,
        pipeline_runs,
        step_time_s,
    )
    from costmodel.batched.row_bytes import leanest_bytes, needed_bytes
    from costmodel.batched.rows import Layers, Rows, stage_runs
    from costmodel.batched.stage_rows import StageRows, any_cut_s

__all__, __getattr__ = public(__name__, __file__)
