"""`LossScale`: keeps the gradients of 16-bit floats from vanishing.

The loss is multiplied before the backward and the gradients are divided after it. A
step whose gradients overflow is left out and the scale halved; after `INTERVAL` good
ones in a row it is doubled (Micikevicius et al., ICLR 2018, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST: Final = 2.0**16
INTERVAL: Final = 2000
LEAST: Final = 1.0


@dataclass(slots=True)
class LossScale:
    """Today's scale, and how many steps in a row were good with it.

    Where it is not *dynamic* it stays 1 and no step is left out.
    """

    dynamic: bool
    value: float = 1.0
    good_steps: int = 0

    def judge(self, *, finite: bool) -> bool:
        """Whether the step that was made with this scale counts; then the next scale.

        >>> scale = LossScale(dynamic=True, value=4.0)
        >>> scale.judge(finite=False), scale.value
        (False, 2.0)
        """
        if not self.dynamic:
            return True
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value = max(self.value / 2, LEAST)
        elif self.good_steps == INTERVAL:
            self.value, self.good_steps = self.value * 2, 0
        return finite


def loss_scale(dynamic: bool) -> LossScale:
    """The scale of a run's first step."""
    return LossScale(dynamic, FIRST if dynamic else 1.0)
