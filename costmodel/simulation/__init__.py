"""The front door: a question resolved, priced and assembled into an estimate."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from costmodel.simulation.estimator import BREAKDOWN, Estimate, answers, estimate
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
        machine_of,
        origin_of,
        profile_of,
        read_layout_file,
        require_left_open,
        spelled,
        write_layout,
    )
    from costmodel.simulation.pricing import from_file, from_options, priced, simulate
    from costmodel.simulation.question import (
        NO_CUT,
        Question,
        default_precision,
        degrees_asked,
        flash_default,
        has_experts,
        offload_of,
        remarks_on,
        resolve,
        resolve_job,
        resolve_machine,
        spread,
        unbalanced,
        width_over,
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

__all__ = [
    "BREAKDOWN",
    "CONVENTIONS",
    "NO_CUT",
    "P90",
    "STEP_NOISE",
    "Answer",
    "Estimate",
    "Estimated",
    "LayoutFile",
    "Option",
    "Options",
    "Question",
    "answers",
    "cluster_of",
    "convention",
    "default_precision",
    "degrees_asked",
    "estimate",
    "fewest_layers",
    "file_document",
    "fingerprint",
    "fitted",
    "flash_default",
    "from_file",
    "from_options",
    "has_experts",
    "job_of",
    "machine_of",
    "model_flops",
    "offload_of",
    "operator_flops",
    "origin_of",
    "parse_file",
    "priced",
    "profile_of",
    "read_layout_file",
    "remade",
    "remarks_on",
    "require_left_open",
    "require_one_price",
    "resolve",
    "resolve_job",
    "resolve_machine",
    "simulate",
    "spelled",
    "spelled_out",
    "spread",
    "total_compute_flops",
    "unbalanced",
    "width_over",
    "with_odds",
    "write_layout",
    "zero_plus_of",
]

__getattr__ = lazily(__name__, __file__)
