"""What ranks are asked to measure, where a test does not care."""

from __future__ import annotations

from profiles.measure.timing.tasks import Request

REQUEST = Request(
    device="cpu",
    ranks=3,
    threads=1,
    operations=(),
    exchanges=(),
    arena_bytes=1e6,
    cache_bytes=1e6,
    rendezvous="",
    budget_s=1.0,
    most_repeats=9,
    timeout_s=1.0,
)
