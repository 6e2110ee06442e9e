"""What a trace says: the steps of a module's forward, and what each one needs.

Counts are of one sample; what does not grow with the batch stands beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A count that grows with the batch: so much a sample, and so much once."""

    each: float = 0.0
    once: float = 0.0

    def of(self, batch: int) -> float:
        return self.each * batch + self.once

    def __add__(self, other: Amount) -> Amount:
        return Amount(each=self.each + other.each, once=self.once + other.once)

    @property
    def one(self) -> float:
        """Of a single sample."""
        return self.each + self.once


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A storage that is kept for backward: the value that it is of (of a step, or an
    input's), or the step's own (`internal`), and its numbers' bytes."""

    value: str
    elements: Amount
    itemsize: int
    floating: bool
    internal: bool = False

    @property
    def bytes(self) -> Amount:
        size = self.itemsize
        return Amount(each=self.elements.each * size, once=self.elements.once * size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the module by its first name; `aliases` are its others (tied)."""

    name: str
    shape: tuple[int, ...]
    trained: bool
    aliases: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        count = 1
        for one in self.shape:
            count *= one
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operator of the forward that computes something (views do not).

    `reads` are values (names of steps, inputs) and `parameters` names; `module` is the
    path of the innermost module that called it, `kind` that module's class.
    `shape` and `read_shapes` are of a batch of one. `numbers` are what else it is
    called with. `moved` counts elements that its kernels read and write.
    """

    name: str
    module: str
    kind: str
    function: str
    reads: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    read_shapes: tuple[tuple[int, ...], ...] = ()
    numbers: Mapping[str, object] = field(default_factory=dict)
    elements: Amount = Amount()
    itemsize: int = 4
    trains: bool = False  # whether a gradient passes
    flops: Amount = Amount()
    backward_flops: Amount = Amount()
    moved: Amount = Amount()
    backward_moved: Amount = Amount()
    kernels: int = 1
    saves: tuple[Saved, ...] = ()
    known: bool = True  # an operator of PyTorch's own, no custom kernel
    line: str = ""  # of the user's code


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The forward of a module in order.

    `loss` is whether its output is a loss (else the mean square stands for it), and
    `lists` are the paths of lists of modules, each with its members' paths.
    """

    name: str
    steps: tuple[Step, ...]
    parameters: tuple[Parameter, ...]
    seq_len: int
    loss: bool
    lists: tuple[tuple[str, tuple[str, ...]], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def flops(self) -> Amount:
        """Of the forward."""
        return sum((one.flops for one in self.steps), Amount())

    @property
    def backward_flops(self) -> Amount:
        return sum((one.backward_flops for one in self.steps), Amount())

    @property
    def saved(self) -> Mapping[str, Saved]:
        """Every storage that is kept for backward, once."""
        return {one.value: one for step in self.steps for one in step.saves}

    @property
    def saved_bytes(self) -> Amount:
        return sum((one.bytes for one in self.saved.values()), Amount())

    @property
    def parameter_count(self) -> int:
        """Elements of all parameters, tied ones once."""
        return sum(one.elements for one in self.parameters)
