"""What hardware and framework do: rates, collectives, topology, coefficients."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.machine.assembly import Machine, machine
    from costmodel.machine.calibration import (
        BESIDE,
        KEPT,
        PACE,
        Calibration,
        LeftOutRun,
        Parameter,
        SeenRun,
        degrees_of_summary,
        step_names,
    )
    from costmodel.machine.coefficients import (
        Coefficient,
        Coefficients,
        device_owners,
        load_coefficients,
    )
    from costmodel.machine.framework import (
        ASSUMED,
        DEFAULT,
        PLAIN,
        UNKNOWN,
        Footprint,
        Framework,
        LaunchFloor,
        framework_of_run,
        framework_on,
        frameworks,
        hides_gradients,
        load_framework,
        shares_cores,
        with_buckets,
        with_overlap,
    )
    from costmodel.machine.kernels import (
        AttentionShape,
        ElementBytes,
        alignment_slowdown,
        attention_flops,
        attention_rate,
        attention_s,
        grouped_matmul_s,
        matmul_flops,
        matmul_s,
        traffic_s,
    )
    from costmodel.machine.profile_files import (
        Profile,
        cluster_called,
        cluster_name,
        read_profile,
    )
    from costmodel.machine.provenance import Sourced, plus, zero
    from costmodel.machine.quantized_collectives import (
        INT4_BYTES,
        INT8_BYTES,
        Group,
        blocks_gathered,
        blocks_reduced,
        gathering_bytes,
        reducing_bytes,
    )
    from costmodel.machine.rates import GENERIC
    from costmodel.machine.topology import (
        MeshAxis,
        always_crosses,
        changes_rail,
        exchange_s,
        joint,
        mesh_axes,
        near_members,
        shares,
    )

__all__, __getattr__ = public(__name__, __file__)
