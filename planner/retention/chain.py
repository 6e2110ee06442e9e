"""`Chain`: a stage as rotor sees it, one link after another.

Link i (from 0) reads `output_bytes[i]` and makes `output_bytes[i + 1]`. Its forward may
keep nothing, its input, or the whole record that its backward needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.retention_menu import Option
from profiles.errors import InvalidSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Seconds and bytes of links in order; `output_bytes` has the chain's input first.

    `record_bytes` are what a link's backward needs, its output included and its input
    not. Transient bytes live inside a pass, beside what it reads and makes.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    output_bytes: tuple[float, ...]
    record_bytes: tuple[float, ...]
    forward_transient_bytes: tuple[float, ...]
    backward_transient_bytes: tuple[float, ...]

    def __post_init__(self) -> None:
        links = len(self.forward_s)
        same = (
            *(self.backward_s, self.record_bytes),
            *(self.forward_transient_bytes, self.backward_transient_bytes),
        )
        if not links or any(len(one) != links for one in same):
            raise InvalidSpec(
                f"a chain of {links} links has as many numbers of each kind, at least 1"
            )
        if len(self.output_bytes) != links + 1:
            raise InvalidSpec(
                f"a chain of {links} links has {links + 1} output_bytes, its input's "
                f"first; got {len(self.output_bytes)}"
            )

    def __len__(self) -> int:
        return len(self.forward_s)

    @property
    def least_s(self) -> float:
        """A step that makes nothing again."""
        return sum(self.forward_s) + sum(self.backward_s)

    @classmethod
    def alike(
        cls,
        links: int,
        *,
        forward_s: float = 1.0,
        backward_s: float = 2.0,
        output_bytes: float = 1.0,
        record_bytes: float = 1.0,
        transient_bytes: float = 0.0,
    ) -> Chain:
        """A chain of equal links.

        >>> Chain.alike(3).least_s
        9.0
        """
        return cls(
            forward_s=(forward_s,) * links,
            backward_s=(backward_s,) * links,
            output_bytes=(output_bytes,) * (links + 1),
            record_bytes=(record_bytes,) * links,
            forward_transient_bytes=(transient_bytes,) * links,
            backward_transient_bytes=(transient_bytes,) * links,
        )


def chain_of_layers(
    layers: Sequence[tuple[Option, float, float]], entry_bytes: float
) -> Chain:
    """Layers as links: of each the option that keeps everything (its menu's first),
    its forward and its backward seconds; *entry_bytes* is what a layer hands on.

    What a layer saves has its input in it; its record has its output instead, which is
    as large.
    """
    kept = tuple(one.saved_bytes for one, _, _ in layers)
    return Chain(
        forward_s=tuple(forward for _, forward, _ in layers),
        backward_s=tuple(backward for _, _, backward in layers),
        output_bytes=(entry_bytes,) * (len(layers) + 1),
        record_bytes=kept,
        forward_transient_bytes=(0.0,) * len(layers),
        backward_transient_bytes=tuple(one.working_bytes for one, _, _ in layers),
    )
