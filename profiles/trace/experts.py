"""Routed experts of a trace as the operators that experts are priced by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from profiles.models import Kind, Operator, Tensor, combine_step, dispatch_step
from profiles.trace.operators import Naming
from profiles.trace.routed import NAME
from profiles.trace.steps import Parameter, Step

_INSIDE = ("routed", "expert_ffn")
_OUTSIDE = ("routed", "hidden")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Of one block of experts."""

    experts: int
    chosen: int
    hidden: int
    inside: int
    copies: int  # 2: a gate beside

    @classmethod
    def of(cls, step: Step, parameters: Mapping[str, Parameter]) -> _Sizes:
        up, down = (parameters[name].shape for name in step.parameters)
        hidden = step.shape[-1]
        inside = down[1] * down[2] // hidden
        return cls(
            experts=up[0],
            chosen=step.read_shapes[1][-1],
            hidden=hidden,
            inside=inside,
            copies=up[1] * up[2] // hidden // inside,
        )


def extents_of(
    steps: Sequence[Step], parameters: Mapping[str, Parameter]
) -> dict[str, int]:
    """Dimensions that experts add to a block."""
    for step in steps:
        if step.function == NAME:
            found = _Sizes.of(step, parameters)
            return {
                "experts": found.experts,
                "routed": found.chosen,
                "expert_ffn": found.inside,
                "hidden": found.hidden,
            }
    return {}


def experts_of(
    step: Step, name: str, naming: Naming, parameters: Mapping[str, Parameter]
) -> Iterator[Operator]:
    """What *step* does: rows sorted by expert, two products around an activation, rows
    put back and summed."""
    sizes = _Sizes.of(step, parameters)
    tokens = step.reads[0]
    given = naming.tensor(tokens, sizes.hidden * naming.tokens, step.read_shapes[0])
    rows = Tensor(name=f"{name}.rows", dims=_OUTSIDE)
    up = Tensor(name=f"{name}.up_out", dims=_INSIDE, copies=sizes.copies)
    active = Tensor(name=f"{name}.activation_out", dims=_INSIDE)
    gate = Tensor(name=f"{name}.gate", dims=_INSIDE, internal=True)
    down = Tensor(name=f"{name}.down_out", dims=_OUTSIDE)
    yield dispatch_step(f"{name}.dispatch", given, rows)
    still = [not parameters[one].trained for one in step.parameters]
    wide = ("expert_ffn",) * sizes.copies
    product = _product(f"{name}.up", rows, up, wide, "hidden")
    yield replace(product, frozen=still[0])
    yield Operator(
        name=f"{name}.activation",
        kind=Kind.ELEMENTWISE,
        function="swiglu" if sizes.copies > 1 else "gelu",
        inputs=(up,),
        output=active,
        saves=(up, gate) if sizes.copies > 1 else (up,),
        forward_elements=sizes.copies + 1,
        backward_elements=2 * sizes.copies + 1,
    )
    product = _product(f"{name}.down", active, down, ("hidden",), "expert_ffn")
    yield replace(product, frozen=still[1])
    output = naming.tensor(step.name, step.elements.one, step.shape)
    combined = combine_step(f"{name}.combine", down, output, sizes.chosen)
    yield replace(combined, saves=(down,))


def _product(
    name: str, source: Tensor, output: Tensor, columns: tuple[str, ...], contracted: str
) -> Operator:
    return Operator(
        name=name,
        kind=Kind.GROUPED_MATMUL,
        function="grouped-matmul",
        inputs=(source,),
        output=output,
        columns=columns,
        contracted=contracted,
        saves=(source,),
    )
