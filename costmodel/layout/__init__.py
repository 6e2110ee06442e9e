"""The plan itself: stages, layer plans, strategies, and the file that holds them."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.layout.checkpoint_segments import (
        counted,
        first_of_each,
        inner,
        longest,
        segments_of,
    )
    from costmodel.layout.layout import (
        CP_KINDS,
        ENDS,
        LayerPlan,
        Layout,
        Mesh,
        Ranges,
        Stage,
        layer_text,
        parse_layers,
    )
    from costmodel.layout.offload import (
        AS_IT_IS,
        COMPRESSIONS,
        NOTHING,
        PLAIN,
        RUNNING,
        STATES,
        TIERS,
        Offload,
        ZeroPlus,
        offload_problems,
        offloaded,
        parse_offload,
        sums_shards_last,
        zero_plus_problems,
    )
    from costmodel.layout.retention import (
        AUTO,
        CORE,
        EVERYTHING,
        KEEP_ALL,
        LATER,
        PRESETS,
        Action,
        Retention,
        Treatment,
        body_presets,
        operator_of,
        preset,
        recompute,
        require_priced,
    )
    from costmodel.layout.sharding_spec import (
        PARTIAL,
        WHOLE,
        InputSharding,
        ModuleSharding,
        OutputSharding,
        ParameterSharding,
        Placed,
        Placement,
        read_shardings,
        settled,
        sharding_documents,
        split,
    )
    from costmodel.layout.strategy import (
        INTEGERS,
        RECOMPUTES,
        SCHEDULES,
        SQRT,
        Columns,
        Uniform,
        asked_layers,
        interleaves,
        nearly_uniform_of,
        recomputes_with,
        replaced,
        spell_out,
        split_layers,
        stage_cuts,
    )

__all__, __getattr__ = public(__name__, __file__)
