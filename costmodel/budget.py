"""The parameter budget: every number that was fitted to runs, and how sure it is.

`data/coefficients.json` holds those of step times, one a line. Rates of kernels and
links are fitted to kernels and links, and have their own files with residuals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from profiles.errors import InvalidFile

PATH: Final = Path(__file__).parent / "data" / "coefficients.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A fitted number. `spread` and `error` are standard deviations of its logarithm:
    of the prior, and of the fit; `rows` is how many runs its fit hangs on."""

    name: str
    meaning: str
    prior: float
    spread: float
    value: float
    error: float
    rows: int = 0


@lru_cache(maxsize=1)
def fitted_to_runs() -> tuple[Parameter, ...]:
    """Those in use; none where nothing was fitted to runs.

    Raises InvalidFile if their file is damaged.
    """
    if not PATH.exists():
        return ()
    try:
        return msgspec.json.decode(PATH.read_bytes(), type=tuple[Parameter, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidFile(f"{PATH} does not hold parameters: {error}") from error
