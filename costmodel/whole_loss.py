"""`Loss`: what the cross-entropies of a micro-batch take, apart from the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.layout_price import LayoutPricer
from costmodel.work import OperatorPrice
from profiles.operators import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The losses of a micro-batch, of one GPU's sequences or of all: seconds on the
    device, bytes of logits, of what they keep and of what they work in."""

    forward_s: float
    backward_s: float
    logits_bytes: float
    kept_bytes: float
    working_bytes: float

    @classmethod
    def of(cls, pricer: LayoutPricer) -> Loss:
        found = list(_losses(pricer))
        prices = [price for price, _ in found]
        return cls(
            forward_s=sum(float(one.forward.device_s) for one in prices),
            backward_s=sum(float(one.backward.device_s) for one in prices),
            logits_bytes=sum(size for _, size in found),
            kept_bytes=sum(
                float(size)
                for one in prices
                for size in (one.saved | one.internal).values()
            ),
            working_bytes=max(
                float(one.output_bytes + one.input_bytes) for one in prices
            ),
        )


def _losses(pricer: LayoutPricer) -> Iterator[tuple[OperatorPrice, float]]:
    """Each cross-entropy's price, and the bytes of its logits."""
    graph, (stage,) = pricer.job.graph, pricer.layout.stages
    blocks = dict(zip(graph.layer_names, graph.layers, strict=True))
    for name, plan in zip(stage.layers, stage.plans, strict=True):
        block = blocks[name]
        for operator in block.operators:
            if operator.kind is Kind.CROSS_ENTROPY:
                prices = pricer.operator_prices(block, plan, stage)
                logits = operator.inputs[0].name
                made = {one.output.name: one.name for one in block.operators}
                yield prices[operator.name], float(prices[made[logits]].output_bytes)
