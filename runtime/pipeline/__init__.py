"""The executor of action streams, its stages and messages."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from runtime.pipeline.executor import Executor, Hooks, PipelineStage
    from runtime.pipeline.p2p import Arrival, Links

__all__, __getattr__ = public(__name__, __file__)
