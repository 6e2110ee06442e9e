"""Measured tables by sample key, read, looked up and interpolated."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from profiles.samples.files import (
        content_hash,
        read_samples,
        require_writable,
        write_samples,
    )
    from profiles.samples.interpolation import Curve, made_monotone
    from profiles.samples.local import LOCAL, local_cluster
    from profiles.samples.operator_keys import (
        BESIDE,
        GAPS,
        NEVER_NARROW,
        SIXTEEN_BITS,
        SOON,
        SORTED_AGAIN,
        STEP_KINDS,
        UNIT_KINDS,
        number_of,
        operator_shape,
    )
    from profiles.samples.table import (
        ALONE,
        BACKWARD,
        FORWARD,
        CollectiveKey,
        OperatorKey,
        Sample,
        Samples,
    )
    from profiles.samples.view import sample_view

__all__ = [
    "ALONE",
    "BACKWARD",
    "BESIDE",
    "FORWARD",
    "GAPS",
    "LOCAL",
    "NEVER_NARROW",
    "SIXTEEN_BITS",
    "SOON",
    "SORTED_AGAIN",
    "STEP_KINDS",
    "UNIT_KINDS",
    "CollectiveKey",
    "Curve",
    "OperatorKey",
    "Sample",
    "Samples",
    "content_hash",
    "local_cluster",
    "made_monotone",
    "number_of",
    "operator_shape",
    "read_samples",
    "require_writable",
    "sample_view",
    "write_samples",
]

__getattr__ = lazily(__name__, __file__)
