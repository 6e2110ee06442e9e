"""The executor of action streams, its stages and messages."""

from typing import TYPE_CHECKING

from profiles.lazy import lazily

if TYPE_CHECKING:
    from runtime.pipeline.executor import Executor, Hooks, PipelineStage
    from runtime.pipeline.p2p import Arrival, Links

__all__ = [
    "Arrival",
    "Executor",
    "Hooks",
    "Links",
    "PipelineStage",
]

__getattr__ = lazily(__name__, __file__)
