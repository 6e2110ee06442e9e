"""An estimate of inference as one JSON document."""

from __future__ import annotations

from typing import Any

from costmodel.inference.estimate import (
    BOUNDS,
    InferenceEstimate,
    Passed,
    prefill_flops,
    token_bytes,
)
from costmodel.inference.memory import prompts_together


def document(found: InferenceEstimate) -> dict[str, Any]:
    """What `simulate --inference --json` prints; units are in the names."""
    asked, gpus = found.asked, found.gpus
    choice, batch = asked.choice, asked.job.global_batch
    quantization = asked.stored.quantization
    fullest = max(found.held, key=lambda one: one.total)
    return {
        "fits": found.fits,
        "peak_memory_bytes": fullest.total,
        "capacity_bytes": asked.machine.device.capacity_bytes,
        "largest_global_batch": (
            found.largest_micro_batch * asked.micro_batches * choice.dp
        ),
        "memory": [
            {"stage": stage, **held.document()} for stage, held in enumerate(found.held)
        ],
        "kv_cache_bytes_per_token": token_bytes(asked),
        "context_tokens": asked.job.seq_len,
        "prompt_tokens": asked.prompt_len,
        "new_tokens": asked.new_tokens,
        "prefill": {
            "time_s": found.prefill_s,
            "time_to_first_token_s": float(found.prefill.latency_s),
            "prompts_together": prompts_together(asked, choice.micro_batch),
            "tokens_per_s": batch * asked.prompt_len / found.prefill_s,
            "tokens_per_s_per_gpu": batch * asked.prompt_len / found.prefill_s / gpus,
            "flops_per_token": prefill_flops(asked.job, asked.prompt_len)
            / asked.prompt_len,
            "mfu": prefill_mfu(found),
            **_bound(found.prefill),
            "breakdown_s": found.prefill.breakdown_s(float(found.prefill.latency_s)),
        },
        "decode": {
            "step_time_s": found.step_s,
            "tokens_per_s": batch / found.step_s,
            "tokens_per_s_per_gpu": batch / found.step_s / gpus,
            "least_step_time_s": found.least_step_s,
            "weight_bytes_read": float(found.decode.weight_bytes),
            "kv_cache_bytes_read": float(found.decode.cache_bytes),
            **_bound(found.decode),
            "breakdown_s": found.decode.breakdown_s(found.step_s),
        },
        "generation": {
            "time_s": found.total_s,
            "decode_time_s": found.generation_s,
            "tokens_per_s": batch * asked.new_tokens / found.total_s,
        },
        "layout": {
            **{name: getattr(choice, name) for name in ("tp", "pp", "dp", "ep")},
            "micro_batch": choice.micro_batch,
            "micro_batches": asked.micro_batches,
            "global_batch": batch,
            "precision": choice.precision,
            "kv_cache_dtype": asked.cache.value,
            "quantization": quantization,
            "group_size": asked.stored.group_size if quantization else None,
            "flash_attention": choice.flash_attention,
            "cuda_graphs": asked.graphs,
        },
        "assumed": dict(asked.assumed),
        "warnings": list(warnings(found)),
    }


def _bound(passed: Passed) -> dict[str, Any]:
    return {
        "bound": passed.bound,
        "bounds_s": {name: float(passed.bounds_s[name]) for name in BOUNDS},
    }


def prefill_mfu(found: InferenceEstimate) -> float:
    """FLOPs that the prompts need over what the dense peak would do meanwhile."""
    asked = found.asked
    needed = prefill_flops(asked.job, asked.prompt_len) * asked.job.global_batch
    peak = asked.machine.device.peak_flops_per_s(asked.precision.matmul)
    return needed / (found.prefill_s * found.gpus * peak)


def warnings(found: InferenceEstimate) -> list[str]:
    """What a reader should know of the layout, and of the links behind its price."""
    asked, said = found.asked, []
    heads = {block.kv_heads for block in asked.job.graph.kinds.values()}
    tp, latent = asked.choice.tp, getattr(asked.job.spec, "mla", None) is not None
    if latent and tp > 1:
        said.append(
            f"every one of the tp {tp} ranks keeps all latents: they have no heads to "
            "be cut by"
        )
    elif heads and max(heads) < tp:
        said.append(
            f"tp {tp} is more than the {max(heads)} key-value heads: each is kept on "
            f"{tp // max(heads)} ranks"
        )
    return [*said, *asked.machine.remarks()]
