"""`Known`: what pricing one layout after another need not make twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """Prices of one job on one machine, by what they depend on.

    The delta simulation of FlexFlow (Jia et al., MLSys 2019, section 5.3): where one
    dimension of a layout changes, what does not depend on it is known already.

    >>> known = Known()
    >>> known.once("a", lambda: 1), known.once("a", lambda: 2), len(known)
    (1, 1, 1)
    """

    _made: dict[Hashable, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many prices were made."""
        return len(self._made)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What *make* gives, made when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found
