"""Steps of convolutional networks: an image, or a volume, is one token.

A tensor has its channels as its width, and its positions as so many copies. A
convolution is a product of as many rows; it keeps its input, not the windows of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from profiles.models.graph import (
    ROWS,
    Block,
    Element,
    Kind,
    Operator,
    Tensor,
    at_rows,
    cross_entropy,
    product,
)


def feature_map(name: str, width: str, positions: int) -> Tensor:
    """A tensor of so many *positions*, with a dimension of channels."""
    return Tensor(name=name, dims=(*ROWS, width), copies=positions)


@dataclass(slots=True, kw_only=True)
class Steps:
    """The operators of a block as they are added, and its dimensions."""

    dimensions: int = 2
    extents: dict[str, int] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)

    def block(
        self, name: str, entry: Tensor | None, reads: tuple[Tensor, ...] = ()
    ) -> Block:
        """All that was added, as a block."""
        return Block(
            name=name,
            operators=tuple(self.operators),
            extents=dict(self.extents),
            entry=entry,
            reads=reads,
        )

    def channels(self, tensor: Tensor) -> int:
        """How wide a feature map is."""
        return sum(self.extents[part] for part in tensor.dims[-1].split("+"))

    def given(self, name: str, channels: int, positions: int) -> Tensor:
        """A feature map that the block is given."""
        self.extents[f"{name}_channels"] = channels
        return feature_map(name, f"{name}_channels", positions)

    def convolution(
        self,
        name: str,
        source: Tensor,
        channels: int,
        positions: int,
        window: int = 1,
        *,
        bias: bool = False,
        first: bool = False,
    ) -> Tensor:
        """Windows of so many places; the *first* of a network reads what nobody makes,
        so that there is no gradient of it."""
        wide, deep = f"{name}_channels", f"{name}_window"
        self.extents |= {wide: channels, deep: self.channels(source) * window}
        output = feature_map(f"{name}_out", wide, positions)
        made = self._product(name, source, output, wide, window)
        given = () if first else made.inputs
        self.operators.append(replace(made, bias=bias, inputs=given))
        return output

    def _sizes(self, source: Tensor, output: Tensor, window: int) -> tuple[int, ...]:
        """What the kernel is called with (`Operator.sizes`)."""
        before, after = self._side(source.copies), self._side(output.copies)
        stride = -(-max(before, after) // min(before, after))
        sides = (before, after, self._side(window), stride)
        channels = (self.channels(source), self.channels(output), 1)
        return (*channels, *(one for one in sides for _ in range(self.dimensions)))

    def _side(self, positions: float) -> int:
        side: float = positions ** (1 / self.dimensions)
        return round(side)

    def transposed(
        self, name: str, source: Tensor, channels: int, window: int
    ) -> Tensor:
        """Each position becomes a window of as many places, with a bias for each
        channel."""
        wide, deep, made = (f"{name}_{end}" for end in ("channels", "window", "made"))
        self.extents |= {
            wide: channels,
            deep: self.channels(source),
            made: channels * window,
        }
        output = feature_map(f"{name}_out", wide, round(source.copies * window))
        one = self._product(name, source, output, made, window)
        self.operators.append(replace(one, rows=source.copies, vectors=1))
        return output

    def _product(
        self, name: str, source: Tensor, output: Tensor, columns: str, window: int
    ) -> Operator:
        return Operator(
            name=name,
            kind=Kind.MATMUL,
            function="convolution",
            inputs=(source,),
            output=output,
            columns=(columns,),
            contracted=f"{name}_window",
            vector_dim=output.dims[-1],
            saves=(source,),
            rows=output.copies,
            sizes=self._sizes(source, output, window),
        )

    def batch_norm(self, name: str, source: Tensor) -> Tensor:
        """Two passes over what it reads, and backward over it and the gradient."""
        output = feature_map(f"{name}_out", source.dims[-1], round(source.copies))
        self._elementwise(
            name, "batchnorm", (source,), output, (source,), (3.0, 5.0), vectors=2
        )
        return output

    def relu(
        self,
        name: str,
        source: Tensor,
        *,
        keeps: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        """In place it keeps what it makes, else what it reads; of the *last* of a block
        the next layer keeps what it makes."""
        output = feature_map(f"{name}_out", source.dims[-1], round(source.copies))
        saved = () if last and keeps is None else (keeps or output,)
        self._elementwise(name, "relu", (source,), output, saved, (2.0, 3.0))
        return output

    def added(self, name: str, branch: Tensor, skip: Tensor) -> Tensor:
        """The sum of two feature maps."""
        output = feature_map(f"{name}_out", branch.dims[-1], round(branch.copies))
        self._elementwise(name, "residual", (branch, skip), output, (), (3.0, 1.0))
        return output

    def joined(self, name: str, one: Tensor, other: Tensor) -> Tensor:
        """The channels of both."""
        width = f"{one.dims[-1]}+{other.dims[-1]}"
        output = feature_map(f"{name}_out", width, round(one.copies))
        self._elementwise(name, "concatenation", (one, other), output, (), (2.0, 2.0))
        return output

    def max_pool(
        self, name: str, source: Tensor, positions: int, window: int = 2
    ) -> Tensor:
        """It keeps its input, and where each maximum was, in 64 bits."""
        output = feature_map(f"{name}_out", source.dims[-1], positions)
        where = Tensor(
            name=f"{name}_places",
            dims=output.dims,
            element=Element.FP32,
            copies=2 * positions,
            internal=True,
        )
        read = source.copies / positions
        moved = (read + 3, read + 3)
        self._elementwise(name, "max-pool", (source,), output, (source, where), moved)
        sides = (self._side(source.copies), self._side(positions), window)
        each = (one for one in sides for _ in range(self.dimensions))
        sizes = (self.channels(source), *each)
        self.operators[-1] = replace(self.operators[-1], sizes=sizes)
        return output

    def mean(self, name: str, source: Tensor) -> Tensor:
        """Of all positions; what it reads was kept by the function before."""
        output = feature_map(f"{name}_out", source.dims[-1], 1)
        moved = source.copies + 1
        self._elementwise(name, "mean", (source,), output, (source,), (moved, moved))
        return output

    def _elementwise(
        self,
        name: str,
        function: str,
        inputs: tuple[Tensor, ...],
        output: Tensor,
        saves: tuple[Tensor, ...],
        moved: tuple[float, float],
        vectors: int = 0,
    ) -> None:
        forward, backward = moved
        self.operators.append(
            Operator(
                name=name,
                kind=Kind.ELEMENTWISE,
                function=function,
                inputs=inputs,
                output=output,
                vectors=vectors,
                vector_dim=output.dims[-1],
                saves=saves,
                forward_elements=forward,
                backward_elements=backward,
                rows=output.copies,
            )
        )

    def classified(self, source: Tensor, classes: int) -> None:
        """A product with a bias, and the cross-entropy."""
        self.extents["classes"] = classes
        logits = Tensor(name="logits_out", dims=(*ROWS, "classes"))
        width = source.dims[-1]
        self.operators.append(
            product("logits", (source,), logits, ("classes",), width, bias=True)
        )
        self.loss(logits)

    def loss(self, logits: Tensor) -> None:
        """The cross-entropy of each position, whose class it keeps in 64 bits."""
        step = cross_entropy("loss", replace(logits, copies=1))
        classes = Tensor(name="labels", dims=ROWS, element=Element.FP32, copies=2)
        step = replace(step, saves=(*step.saves, classes))
        (step,) = at_rows([step], logits.copies)
        self.operators.append(replace(step, inputs=(logits,)))
