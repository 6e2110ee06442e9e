"""What serving costs: prefill, decoding, the key-value cache, memory."""

from typing import TYPE_CHECKING

from profiles.lazy import public

if TYPE_CHECKING:
    from costmodel.inference.estimate import (
        InferenceEstimate,
        Passed,
        inference_estimate,
        passed,
    )
    from costmodel.inference.memory import (
        largest_micro_batch,
        prompts_together,
        rank_memory,
    )
    from costmodel.inference.question import Question, resolve
    from costmodel.inference.report import answer, inference_view, layout_words

__all__, __getattr__ = public(__name__, __file__)
