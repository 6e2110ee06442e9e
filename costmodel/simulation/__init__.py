"""The front door: a question resolved, priced and assembled into an estimate."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.simulation.dtr_trace import dtr_rows, rematerialized
    from costmodel.simulation.estimator import (
        BREAKDOWN,
        Estimate,
        answers,
        estimate,
    )
    from costmodel.simulation.flops import (
        CONVENTIONS,
        convention,
        model_flops,
        operator_flops,
        total_compute_flops,
    )
    from costmodel.simulation.layout_files import (
        cluster_of,
        fingerprint,
        job_of,
        layout_document,
        machine_of,
        origin_of,
        profile_of,
        read_layout_file,
        require_left_open,
        spelled,
        trace_named,
        write_layout,
    )
    from costmodel.simulation.pricing import (
        Pricing,
        from_file,
        from_options,
        priced,
        simulate,
    )
    from costmodel.simulation.question import (
        NO_CUT,
        Question,
        default_precision,
        degrees_asked,
        flash_default,
        has_experts,
        offload_of,
        quality_remarks,
        remarks_on,
        resolve,
        resolve_job,
        resolve_machine,
        spread,
        unbalanced,
        width_over,
        with_compressed_gradients,
        zero_plus_of,
    )
    from costmodel.simulation.remat_auto import fewest_layers, fitted, spelled_out
    from costmodel.simulation.remat_options import Option, remade
    from costmodel.simulation.result import Answer
    from costmodel.simulation.serialization import (
        Estimated,
        LayoutFile,
        Options,
        file_document,
        parse_file,
        require_one_price,
    )
    from costmodel.simulation.uncertainty import P90, STEP_NOISE, with_odds

__all__, __getattr__ = public(__name__, __file__)
