"""`LatencyOptions`: how soon `plan --inference` is to answer; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.commandline import FloatRange, collected, flags, option
from profiles.errors import Contradiction

LONGEST_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """Each is None where the command line does not say."""

    max_first_token_s: float | None = option(
        type=FloatRange(0, LONGEST_S, strictly=True),
        metavar="S",
        help="Longest time of a prefill pass, until its first tokens.",
    )
    max_token_s: float | None = option(
        type=FloatRange(0, LONGEST_S, strictly=True),
        metavar="S",
        help="Longest time from one token of a sequence to its next, at the whole "
        "context.",
    )

    def require_inference(self) -> None:
        """Raise Contradiction for latencies of a training step."""
        for flag in flags(self):
            raise Contradiction(f"{flag} is about inference; add --inference")


latency_options = collected("Latency", LatencyOptions, "latency")
