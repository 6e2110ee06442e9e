"""`InferenceOptions`: what `simulate --inference` asks beside the model and layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from costmodel.options.pins import Pins
from profiles.commandline import (
    LARGEST_SEQUENCE,
    Choice,
    FloatRange,
    IntRange,
    JobOptions,
    collected,
    given,
    option,
    switch,
    text,
    without_defaults,
)
from profiles.errors import Contradiction, Unsupported

CACHE_FORMATS: Final = ("fp32", "fp16", "bf16", "fp8")
QUANTIZATIONS: Final = ("int8", "int4")  # of weights alone
W8A8: Final = "w8a8"  # of activations too
# What of the question and of the layout inference takes; the rest is training's.
TAKEN: Final = (
    *("model", "cluster", "gpus", "seq_len", "global_batch", "precision"),
    *("tp", "pp", "dp", "ep", "micro_batch", "micro_batches"),
    *("flash_attention", "imbalance"),
)


Options = TypeVar("Options")


def for_inference(options: Options) -> Options:
    """*options* without what only a file of defaults says, and is training's."""
    return without_defaults(options, but=(*TAKEN, "top", "details"))


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOptions:
    """Each is None (or false) where the command line does not say."""

    inference: bool | None = option(
        is_flag=True,
        help="Estimate prefill and decoding instead of a training step; --seq-len is "
        "the context, --micro-batch the sequences of a pass.",
    )
    prompt_len: int | None = option(
        type=IntRange(1, LARGEST_SEQUENCE),
        help="Tokens of each prompt.  [default: the context minus the new tokens]",
    )
    new_tokens: int | None = option(
        type=IntRange(1, LARGEST_SEQUENCE),
        help="Tokens generated per prompt.  [default: 128, at most half the context]",
    )
    kv_cache_dtype: str | None = option(
        type=Choice(CACHE_FORMATS),
        help="Precision of the KV cache.  [default: the activations']",
    )
    quantization: str | None = option(
        type=Choice((*QUANTIZATIONS, W8A8)),
        help="int8 and int4: of weights, products run in 16 bits; w8a8: of activations "
        "too, by token, products run in 8.",
    )
    group_size: int | None = option(
        type=IntRange(),
        metavar="G",
        help="Quantized weights that share a scale and a zero.  [default: 128]",
    )
    cuda_graphs: bool | None = switch(
        help="Decode with CUDA graphs, without host launch overhead.  [default: on]"
    )

    draft_model: str | None = option(
        type=text,
        metavar="NAME|FILE",
        help="What if: speculative decoding, with this model as the draft.",
    )
    draft_tokens: int | None = option(
        type=IntRange(1, 64),
        metavar="K",
        help="Tokens that the draft proposes at a time.  [default: 4]",
    )
    acceptance: float | None = option(
        type=FloatRange(0, 1),
        metavar="P",
        help="Probability that a proposed token is accepted.  [default: 0.7]",
    )
    prefill_gpus: int | None = option(
        type=IntRange(),
        metavar="N",
        help="What if: N of the GPUs read prompts, and the others decode.",
    )

    def require_no_what_if(self) -> None:
        """Raise Contradiction for what is about one layout, where several are asked
        for."""
        for name in ("draft_model", "prefill_gpus"):
            if getattr(self, name) is not None:
                raise Contradiction(
                    f"{_flag(name)} is about one layout; leave it or the others out"
                )

    def require_alone(self, job: JobOptions, pins: Pins, others: Iterable[str]) -> None:
        """Raise Contradiction unless these options go with the rest of the command, and
        Unsupported for a machine that is known by its samples alone.

        *others* are given flags that are no option of the question or the layout.
        """
        if not self.inference:
            mine = [_flag(name) for name in given(self)]
            if mine:
                raise Contradiction(
                    f"{', '.join(mine)} {_be(mine)} about inference; add --inference"
                )
            return
        if self.draft_model is None:
            for name in ("draft_tokens", "acceptance"):
                if getattr(self, name) is not None:
                    raise Contradiction(
                        f"{_flag(name)} is of speculative decoding; give --draft-model"
                    )
        from profiles.samples import LOCAL  # loads numpy

        if job.cluster is not None and job.cluster.lower() == LOCAL:
            raise Unsupported(
                f"--cluster {job.cluster} is known by samples of training alone; "
                "inference is priced on clusters of the catalogue, or of a file"
            )
        said = {**given(job), **given(pins)}
        wrong = [_flag(name) for name in said if name not in TAKEN] + list(others)
        if wrong:
            mine = [*(_flag(name) for name in (*TAKEN, *OWN)), "--sweep"]
            raise Contradiction(
                f"--inference does not take {', '.join(wrong)}; it takes "
                f"{', '.join(mine)}"
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _be(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


OWN: Final = tuple(InferenceOptions.__dataclass_fields__)[1:]


inference_options = collected("Inference", InferenceOptions, "inference")
