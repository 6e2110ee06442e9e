"""The clocks: what is timed, and how, on which ranks."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from profiles.measure.timing.buffers import touch_heap
    from profiles.measure.timing.clock import LONG, SHORT, Clock, Ranks, between
    from profiles.measure.timing.collectives import Works, ways
    from profiles.measure.timing.fp8 import WHOLE, scaled_product
    from profiles.measure.timing.kernel import Kernel, Layer, saved_bytes
    from profiles.measure.timing.moe_routing import (
        choose,
        chosen_often,
        combined,
        copied,
        sorting,
        weighed,
    )
    from profiles.measure.timing.operands import arena_bytes, flops, held_bytes, work
    from profiles.measure.timing.operator_functions import KINDS, functions
    from profiles.measure.timing.process_groups import Groups
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

__all__ = [
    "BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "KINDS",
    "LONG",
    "PRODUCTS",
    "SHORT",
    "WHOLE",
    "Clock",
    "Exchange",
    "Groups",
    "Kernel",
    "Kernels",
    "Layer",
    "Operation",
    "Ranks",
    "Request",
    "Tensor",
    "Timing",
    "Works",
    "arena_bytes",
    "between",
    "choose",
    "chosen_often",
    "combined",
    "copied",
    "flops",
    "functions",
    "held_bytes",
    "saved_bytes",
    "scaled_product",
    "sorting",
    "touch_heap",
    "ways",
    "weighed",
    "work",
]

__getattr__ = lazily(__name__, __file__)
