"""Prices over a range: of any option, of links, devices and clusters."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.sweep.axes import (
        AXES,
        OF_TRAINING,
        point_words,
        points,
    )
    from costmodel.sweep.clusters import CLUSTER_AXES, changed
    from costmodel.sweep.output import (
        CELLS,
        COLUMNS,
        columns_of,
        counted_in,
        csv_text,
        dollars_per_mtoken,
        heading,
        kwh_per_mtoken,
        show_sweep,
        unit_of,
    )
    from costmodel.sweep.pricing import Found, at, sweep

__all__, __getattr__ = public(__name__, __file__)
