"""`Job`: what is trained. No decision is in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from profiles.errors import InvalidSpec, UnknownName, Unsupported
from profiles.limits import require
from profiles.models.decoder import decoder_graph
from profiles.models.graph import ModelGraph
from profiles.models.lora import Adapters, with_adapters
from profiles.models.spec import DecoderSpec, ModelSpec

# Moments that an optimizer keeps for each parameter, as so many of fp32. In bf16: of
# DeepSeek-V3 (arXiv 2412.19437, section 3.3.3), as Megatron-Core's --exp-avg-dtype.
OPTIMIZERS = {
    "adamw": 2,
    "adamw-bf16-moments": 1,
    "adam": 2,
    "lamb": 2,
    "sgd-momentum": 1,
    "sgd": 0,
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model, the tokens of a step and the optimizer.

    `seq_len` in tokens, `global_batch` in sequences a step. With `adapters` they alone
    are trained; the model is frozen.
    """

    model: str
    spec: ModelSpec
    seq_len: int
    global_batch: int
    optimizer: str = "adamw"
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZERS)
        for name in ("seq_len", "global_batch"):
            require("size", getattr(self, name), name)
        spec = self.spec
        if (
            isinstance(spec, DecoderSpec)
            and spec.position == "learned"
            and self.seq_len > spec.max_positions
        ):
            raise InvalidSpec(
                f"seq_len={self.seq_len} is longer than the {spec.max_positions} "
                f"learned positions of {self.model}; choose a shorter sequence"
            )

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.seq_len * self.global_batch

    @property
    def has_experts(self) -> bool:
        return isinstance(self.spec, DecoderSpec) and self.spec.moe is not None

    @property
    def moments(self) -> int:
        """Bytes of a parameter's moments, as so many of fp32."""
        return OPTIMIZERS[self.optimizer]

    @cached_property
    def graph(self) -> ModelGraph:
        """The operator graph; raises Unsupported for families without one yet."""
        if isinstance(self.spec, DecoderSpec):
            return _graph(self.spec, self.model, self.adapters)
        raise Unsupported(
            f"{self.model} is of family {self.spec.family!r}, which has a spec but no "
            "operator graph yet; decoder models are priced"
        )


@lru_cache(maxsize=1024)
def _graph(spec: DecoderSpec, name: str, adapters: Adapters | None) -> ModelGraph:
    """Jobs that differ in their batch share a graph."""
    graph = decoder_graph(spec, name)
    return with_adapters(graph, adapters) if adapters else graph
