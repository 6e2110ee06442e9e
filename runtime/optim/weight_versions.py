"""The weights of a stage as of several updates, for passes in flight across updates.

A parameter's `data` is what its version's passes read. An update changes a copy, so
that the graphs of forwards keep what they were made with; or, where one version serves
all, the weights themselves. Neither counts as a change in place to autograd: it is the
schedule that says which weights a backward is to have.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class WeightVersions:
    """Versions of *parameters*, numbered by the updates that they have had since
    `fill`; one of them is in use."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.fill()

    def fill(self) -> None:
        """What there is now is version 0, and the only one."""
        self.newest = 0
        self._there = {0: [one.data for one in self._parameters]}

    @property
    def held(self) -> int:
        """How many there are."""
        return len(self._there)

    def use(self, version: int) -> None:
        """Passes that begin now read *version*."""
        for parameter, values in zip(
            self._parameters, self._there[version], strict=True
        ):
            parameter.data = values

    @torch.no_grad()
    def renew(self, oldest: int) -> None:
        """Use the next version, which an update is about to make of the newest one;
        those before *oldest* are not wanted any more."""
        newest = self._there[self.newest]
        unwanted = [number for number in self._there if number < oldest]
        free = [self._there.pop(number) for number in unwanted]
        self.newest += 1
        if self.newest - 1 < oldest:
            self._there[self.newest] = newest
        else:
            into = free[0] if free else [torch.empty_like(one) for one in newest]
            torch._foreach_copy_(into, newest)
            self._there[self.newest] = into
        self.use(self.newest)
