"""`Array`: a NumPy array of numbers; its shape is said where it is used."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
