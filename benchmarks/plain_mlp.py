"""A plain MLP as operators: products of one width with a function after each.

    x → n × n → f → n × n → f → …

Over tp the first product is split by columns, the next by rows, and so on: widths are
called `hidden` and `ffn` in turn, as in a transformer's MLP, and the rules of
`costmodel.operators.sharding` do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from profiles.models.graph import Block, Kind, Operator, Tensor

WIDTHS = ("hidden", "ffn")


def plain_mlp(width: int, products: int, function: str, *, last: bool = True) -> Block:
    """*products* of *width*, each followed by *function*; not the last one, unless it
    is to be."""
    entry = _tensor("in", 0)
    return Block(
        name="mlp",
        operators=tuple(_steps(entry, products, function, last=last)),
        extents=dict.fromkeys(WIDTHS, width),
        entry=entry,
    )


def _steps(
    given: Tensor, products: int, function: str, *, last: bool
) -> Iterator[Operator]:
    for number in range(products):
        made = _tensor(f"product_{number}_out", number + 1)
        yield Operator(
            name=f"product_{number}",
            kind=Kind.MATMUL,
            function="matmul",
            inputs=(given,),
            output=made,
            columns=(WIDTHS[(number + 1) % 2],),
            contracted=WIDTHS[number % 2],
            bias=True,
            saves=(given,),
        )
        given = made
        if last or number + 1 < products:
            given = _tensor(f"{function}_{number}_out", number + 1)
            yield Operator(
                name=f"{function}_{number}",
                kind=Kind.ELEMENTWISE,
                function=function,
                inputs=(made,),
                output=given,
                saves=(made,),
                forward_elements=2,
                backward_elements=3,
            )


def _tensor(name: str, number: int) -> Tensor:
    return Tensor(name=name, dims=("batch", "sequence", WIDTHS[number % 2]))
