"""What is measured where no model is named: a spread of shapes.

Both families of decoders, with the norms, activations and positions of each, small and
large enough to read the shapes of other models between them.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.job import Job
from profiles.models.catalog import model
from profiles.models.spec import DecoderSpec

CPU = (("gpt-tiny", 256, 8), ("gpt-mini", 256, 8))
CUDA = (("gpt-350m", 2048, 8), ("gpt-1.3b", 2048, 8), ("llama3.2-3b", 2048, 4))


def default_jobs(device: str) -> tuple[Job, ...]:
    """The jobs of the spread for *device*, cpu or cuda."""
    named = CUDA if device == "cuda" else CPU
    jobs = tuple(
        Job(model=name, spec=model(name).spec, seq_len=seq_len, global_batch=batch)
        for name, seq_len, batch in named
    )
    return jobs if device == "cuda" else (*jobs, _small_llama())


def _small_llama() -> Job:
    """A Llama of gpt-mini's width: no small one is published."""
    mini = model("gpt-mini").spec
    assert isinstance(mini, DecoderSpec), "the catalogue's gpt-mini is a decoder"
    spec = replace(
        mini,
        kv_heads=mini.heads // 2,
        ffn_hidden=mini.hidden * 8 // 3 // 64 * 64,
        gated_mlp=True,
        activation="silu",
        norm="rmsnorm",
        position="rotary",
        max_positions=0,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        tied_embeddings=False,
    )
    return Job(model="llama-mini", spec=spec, seq_len=256, global_batch=8)
