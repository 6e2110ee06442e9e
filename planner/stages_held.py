"""What stages of each kind take at the least, by how many micro-batches they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from planner.stage_kinds import Array, Kind
from planner.stage_layers import Option, stages_sums, unit_of
from planner.stage_passes import Passes, Stages, gathered

EXACT = 1e-12  # sums in another order
ENDLESS = 1e300  # bytes: more than any stage needs
Held = Mapping[Kind, Sequence[Stages]]


class StagesHeld:
    """[stages to the end − 1] → what stages take that fit with as many micro-batches
    in flight, or with all; made when it is asked for. Devices in units of the meshes'
    common divisor; *tied_s* as `Stages.of` has it."""

    def __init__(
        self,
        options: Sequence[Option],
        passes: Sequence[Passes],
        *,
        devices: int,
        micro_batches: int,
        tied_s: float = 0.0,
    ) -> None:
        pairs = zip(options, passes, strict=True)
        self._fitting = [pair for pair in pairs if pair[0].devices <= devices]
        self.unit = unit_of(options, devices)
        self.units, self.layers = devices // self.unit, len(passes[0].forward_s)
        self.micro_batches, self.tied_s = micro_batches, tied_s
        self._known: dict[int, Held] = {}
        self._alike: dict[bytes, Held] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no mesh is small enough."""
        return not self._fitting

    def __getitem__(self, behind: int) -> Held:
        in_flight = min(behind + 1, self.layers, self.units, self.micro_batches)
        if in_flight not in self._known:
            self._known[in_flight] = self._made(in_flight)
        return self._known[in_flight]

    @cached_property
    def _kinds(self) -> list[Kind]:
        devices = self.units * self.unit
        return [option.kind(devices, self.unit) for option, _ in self._fitting]

    @cached_property
    def _stages(self) -> Stages:
        options, passes = zip(*self._fitting, strict=True)
        return Stages.of(options, passes, self.tied_s)

    @cached_property
    def _most(self) -> Array:
        """Micro-batches that each option's stages may have in flight, of so many as
        matter; −1 where they do not fit without any."""
        options = [option for option, _ in self._fitting]
        most = min(self.layers, self.units, self.micro_batches)
        left = np.array(
            [
                min(option.capacity_bytes, ENDLESS) - option.stages_bytes(0)
                for option in options
            ]
        )
        saved = stages_sums(np.array([option.saved_bytes for option in options]))
        found = np.full(left.shape, most)
        limited = (saved > 0) & np.isfinite(saved)
        some = left[limited] * (1 + EXACT) / saved[limited]
        found[limited] = np.minimum(some, most).astype(int)
        return np.where(left >= 0, found, -1).astype(np.int16)

    def _made(self, in_flight: int) -> Held:
        fits = self._most >= in_flight
        key = np.packbits(fits).tobytes()
        if key not in self._alike:
            passes = [each for _, each in self._fitting]
            self._alike[key] = gathered(self._kinds, passes, self._stages, fits)
        return self._alike[key]
