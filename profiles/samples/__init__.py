"""Measured tables by sample key, read, looked up and interpolated."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.samples.files import (
        content_hash,
        read_samples,
        require_writable,
        write_samples,
    )
    from profiles.samples.operator_keys import (
        ATTENTION,
        BESIDE,
        CONVOLUTIONS,
        GAPS,
        NEVER_NARROW,
        OF_HEADS,
        SIXTEEN_BITS,
        SOON,
        SORTED_AGAIN,
        STEP_KINDS,
        UNIT_KINDS,
        kind_of,
        number_of,
        operator_shape,
    )
    from profiles.samples.table import (
        ALONE,
        BACKWARD,
        FORWARD,
        LOCAL,
        CollectiveKey,
        Curve,
        OperatorKey,
        Sample,
        Samples,
        local_cluster,
        made_monotone,
    )
    from profiles.samples.view import sample_view

__all__, __getattr__ = public(__name__, __file__)
