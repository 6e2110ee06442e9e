"""`Kept`: what was made before, by key, as long as it does not weigh too much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(kw_only=True)
class Kept(Generic[K, V]):
    """Things by key; the least recently used go once all weigh more than *most*.

    >>> kept = Kept(weight=len, most=5)
    >>> [kept.get(text, str.upper) for text in ("abc", "de", "f")]
    ['ABC', 'DE', 'F']
    >>> len(kept)
    2
    """

    weight: Callable[[V], int]
    most: int
    _things: OrderedDict[K, V] = field(default_factory=OrderedDict)
    _weighs: int = 0

    def __len__(self) -> int:
        return len(self._things)

    def get(self, key: K, make: Callable[[K], V]) -> V:
        """The thing of *key*, made by *make* if it is not there."""
        if key in self._things:
            self._things.move_to_end(key)
            return self._things[key]
        made = self._things[key] = make(key)
        self._weighs += self.weight(made)
        while self._weighs > self.most and len(self._things) > 1:
            _, gone = self._things.popitem(last=False)
            self._weighs -= self.weight(gone)
        return made
