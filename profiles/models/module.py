"""A user's own module as a model: what its trace made, by `package.module:factory`.

A module is known in this process alone, once it was traced: a file can name it, and
nothing is imported because a file says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from profiles.errors import Unsupported
from profiles.models.graph import ModelGraph

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_reference(name: str) -> bool:
    """Whether *name* is of the form package.module:factory.

    >>> is_reference("mine.models:unet"), is_reference("gpt-13b")
    (True, False)
    """
    return _REFERENCE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSpec:
    """What `module`, as `package.module:factory`, was traced to be.

    Samples have `seq_len` tokens (1 where its inputs are no token numbers). `digest` is
    of the graph. `splits` are the degrees of tensor parallelism that its code can be
    run with, above 1; where there is none `whole` says why. With `own_code` it is run
    as it is, for a trace of it does not compute (experts). `priced_as_bytes` are its
    operators that are not known.
    """

    module: str
    seq_len: int
    digest: str
    parameters: int
    splits: tuple[int, ...] = ()
    whole: str = ""
    own_code: bool = False
    priced_as_bytes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    graph: ModelGraph = field(compare=False, repr=False)
    family: str = "module"


_TRACED: dict[str, ModuleSpec] = {}


def remember(spec: ModuleSpec) -> ModuleSpec:
    """Let files name *spec* by its module."""
    _TRACED[spec.module] = spec
    return spec


def remembered(module: str) -> ModuleSpec:
    """What was traced under that name; raises Unsupported where nothing was."""
    if module not in _TRACED:
        raise Unsupported(
            f"the layout is of the module {module}, and no file decides what is "
            f"imported: give --model {module} too"
        )
    return _TRACED[module]
