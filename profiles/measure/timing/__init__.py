"""The clocks: what is timed, and how, on which ranks."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from profiles.measure.timing.clock import LONG, SHORT, Clock, Ranks, between
    from profiles.measure.timing.collectives import Groups, Works, ways
    from profiles.measure.timing.expert_products import (
        ALIGNMENT,
        BLACKWELL,
        HOPPER,
        MOST_GROUPS,
        capability,
        grouped_fits,
    )
    from profiles.measure.timing.kernel import (
        WHOLE,
        Kernel,
        Layer,
        saved_bytes,
        scaled_product,
    )
    from profiles.measure.timing.operands import (
        arena_bytes,
        flops,
        held_bytes,
        touch_heap,
        work,
    )
    from profiles.measure.timing.operator_functions import (
        KINDS,
        choose,
        chosen_often,
        copied,
        functions,
        sorting,
        turned,
        weighed,
    )
    from profiles.measure.timing.registry import Kernels
    from profiles.measure.timing.tasks import (
        BACKWARD,
        BACKWARD_INPUT,
        BACKWARD_WEIGHT,
        FORWARD,
        PRODUCTS,
        Exchange,
        Operation,
        Request,
        Tensor,
        Timing,
    )

__all__, __getattr__ = public(__name__, __file__)
