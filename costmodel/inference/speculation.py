"""Speculative decoding: a draft model proposes, the model checks all at once.

Of K proposed tokens, each accepted with probability α apart from the others, a round
makes (1 − α^(K + 1)) / (1 − α) tokens on average: those accepted, and one of the model
itself (Leviathan et al., ICML 2023, arXiv 2211.17192, equation 1). A round takes K
steps of the draft, and one pass of the model over K + 1 tokens of each sequence, whose
weights and cache are read once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodel.inference.estimate import InferenceEstimate, over_contexts, passed
from costmodel.inference.memory import rank_memory
from costmodel.inference.question import Question, served_spec
from costmodel.options import InferenceOptions
from costmodel.support import width_violations
from profiles.arrays import Array
from profiles.errors import Contradiction
from profiles.models import DecoderSpec, Job, Model

DRAFT_TOKENS: Final = 4  # as vLLM's and TensorRT-LLM's examples
ACCEPTANCE: Final = 0.7  # [assumed] of a draft of the same family


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """A draft on the ranks of the model, and how its proposals fare."""

    draft: Question
    tokens: int
    acceptance: float
    plain: InferenceEstimate

    @property
    def tokens_per_round(self) -> float:
        """Of each sequence, on average."""
        if self.acceptance == 1:
            return self.tokens + 1.0
        return (1 - self.acceptance ** (self.tokens + 1)) / (1 - self.acceptance)

    def round_s(self, context: Any) -> Array:
        """Seconds of a round at *context* tokens."""
        asked = self.plain.asked
        checked = passed(asked, context=context, fresh=self.tokens + 1)
        proposed = passed(self.draft, context=context)
        own, drafts = (one.step_s(asked.micro_batches) for one in (checked, proposed))
        return np.asarray(own + self.tokens * drafts)

    @property
    def token_s(self) -> float:
        """Until every sequence has one more token, at the whole context."""
        context = self.plain.asked.job.seq_len
        return float(self.round_s(context)) / self.tokens_per_round

    @property
    def total_s(self) -> float:
        """Until every sequence has all its new tokens; both models read the prompts."""
        drafted = replace(self.plain, asked=self.draft, prefill=self._draft_prefill)
        steps_s = over_contexts(self.plain.asked, self.round_s)
        return (
            self.plain.prefill_s + drafted.prefill_s + steps_s / self.tokens_per_round
        )

    @property
    def _draft_prefill(self) -> Any:
        return passed(self.draft, prompts=self.plain.prompts_together)

    @property
    def held_bytes(self) -> float:
        """What the draft needs on each rank: its weights and its cache."""
        (held,) = rank_memory(self.draft)
        return held.parameters + held.kv_cache

    @property
    def fits(self) -> bool:
        room = self.plain.asked.machine.device.capacity_bytes
        return self.plain.peak_memory_bytes + self.held_bytes <= room

    def document(self) -> dict[str, Any]:
        """A member of what `simulate --inference --json` prints."""
        plain = self.plain
        asked = plain.asked
        return {
            "draft_model": self.draft.job.model,
            "draft_tokens": self.tokens,
            "acceptance": self.acceptance,
            "draft_tp": self.draft.choice.tp,
            "tokens_per_round": self.tokens_per_round,
            "round_time_s": float(self.round_s(asked.job.seq_len)),
            "token_time_s": self.token_s,
            "speedup": plain.step_s / self.token_s,
            "generation": {
                "time_s": self.total_s,
                "tokens_per_s": asked.job.global_batch
                * asked.new_tokens
                / self.total_s,
            },
            "draft_memory_bytes": self.held_bytes,
            "fits": self.fits,
        }


def speculation(
    plain: InferenceEstimate,
    options: InferenceOptions,
    draft: Callable[[], Model],
    assumed: dict[str, Any],
) -> Speculation:
    """What a draft buys; raises Contradiction where it cannot go with the model."""
    asked, model = plain.asked, draft()
    spec = served_spec(model)
    _require_possible(asked, model.name, spec)
    tokens, acceptance = options.draft_tokens, options.acceptance
    if tokens is None:
        tokens = assumed["draft_tokens"] = DRAFT_TOKENS
    if acceptance is None:
        acceptance = assumed["acceptance"] = ACCEPTANCE
    job = Job(
        model=model.name,
        spec=spec,
        seq_len=asked.job.seq_len,
        global_batch=asked.job.global_batch,
    )
    tp = max(
        size
        for size in range(1, asked.choice.tp + 1)
        if asked.choice.tp % size == 0 and not [*width_violations(size, job.graph)]
    )
    moe = spec.moe is not None
    choice = replace(asked.choice, tp=tp, ep=1, etp=tp if moe else 1)
    return Speculation(
        draft=replace(asked, job=job, choice=choice),
        tokens=tokens,
        acceptance=acceptance,
        plain=plain,
    )


def _require_possible(asked: Question, name: str, draft: DecoderSpec) -> None:
    if asked.choice.pp > 1:
        raise Contradiction(
            f"--draft-model {name} with pp={asked.choice.pp}: drafts are priced "
            "without a pipeline; set --pp 1"
        )
    vocab = getattr(asked.job.spec, "vocab", draft.vocab)
    if draft.vocab != vocab:
        raise Contradiction(
            f"--draft-model {name} has a vocabulary of {draft.vocab:,}, and "
            f"{asked.job.model} one of {vocab:,}: a draft has the model's own tokenizer"
        )
