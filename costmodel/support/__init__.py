"""Which combinations are legal, and which `execute` carries out."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.support.features import (
        AWAY,
        BY_NAME,
        ROUTED,
        SEGMENTS,
        TREATMENTS,
        Combination,
        treatment,
    )
    from costmodel.support.framework_features import (
        ALIKE,
        BASE,
        BY_STAGE,
        Capabilities,
        Filter,
        capabilities,
        framework_warnings,
        is_described,
        known_of,
        own_capabilities,
    )
    from costmodel.support.legality import (
        MOST_PASSES,
        fuses_attention,
        machine_violations,
        require_legal,
        require_legal_layout,
        spread_violations,
        violations,
        width_violations,
    )
    from costmodel.support.support_table import (
        Row,
        default_precisions,
        is_local,
        local_warnings,
        mechanisms,
        refusals,
        refused,
        require_supported,
    )

__all__, __getattr__ = public(__name__, __file__)
