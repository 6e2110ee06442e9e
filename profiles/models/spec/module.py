"""A user's own module, by `package.module:factory`, once it was traced."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_reference(name: str) -> bool:
    """Whether *name* is of the form package.module:factory.

    >>> is_reference("mine.models:unet"), is_reference("gpt-13b")
    (True, False)
    """
    return _REFERENCE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLayer:
    """A layer that tensor parallelism splits, by its path: in its columns or its rows.

    `parts` are widths that lie side by side in its columns, each of which is split.
    """

    path: str
    style: str  # column, row
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSpec:
    """What the factory `module` makes, as it was traced.

    Samples have `seq_len` tokens (1 where its inputs are no token numbers). `digest` is
    of its graph (`profiles.models.families.traced_graph`).
    `split` are the layers that tensor parallelism splits, and `counts` the numbers of
    its code (a module's path and the name there) that are of one rank then.
    With `own_code` it is run as it is: what was traced does not compute (experts).
    `remarks` are to be said of its price.
    """

    module: str
    seq_len: int
    digest: str
    split: tuple[SplitLayer, ...] = ()
    counts: tuple[tuple[str, str], ...] = ()
    own_code: bool = False
    remarks: tuple[str, ...] = ()
    family: str = "module"

    @property
    def own_length(self) -> int | None:
        """Tokens of each sample."""
        return self.seq_len

    @property
    def longest(self) -> int | None:
        """No more than those."""
        return None
