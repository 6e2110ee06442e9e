"""A layout that a target expresses is read back from its files as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodel.formats.setup import Run, run_of
from costmodel.formats.sources import read_foreign
from costmodel.formats.targets import exports
from costmodel.layout.layout import Layout
from costmodel.layout.offload import NOTHING, PLAIN, Offload, ZeroPlus
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.options import Pins
from costmodel.simulation.layout_files import (
    job_of,
    layout_document,
    read_layout_file,
)
from costmodel.simulation.question import resolve
from costmodel.simulation.serialization import Options
from costmodel.support.legality import violations
from profiles.commandline import JobOptions
from profiles.errors import MeshwrightError, Unsupported
from profiles.hardware.catalog import cluster
from profiles.models.catalog import model
from profiles.models.job import Job

ON = cluster("dgx-a100-80gb")
FILES = {
    "megatron": "megatron.sh",
    "megatron-deepspeed": "megatron_deepspeed.sh",
    "deepspeed": "ds_config.json",
    "torchtitan": "torchtitan.toml",
    "accelerate": "accelerate.yaml",
    "trainer": "training_arguments.json",
    "nemo": "nemo_recipe.py",
    "colossalai": "colossalai_plugin.py",
    "torchrun": "torchrun.sh",
    "slurm": "slurm.sbatch",
    "slurm:megatron": "slurm.sbatch",
    "slurm:megatron-deepspeed": "slurm.sbatch",
    "kubernetes": "trainjob.yaml",
    "kubernetes:megatron": "pytorchjob.yaml",
}
DENSE, WIDE, SPARSE = "gpt-350m", "llama3-8b", "mixtral-8x7b"
MODELS = {
    "megatron": (DENSE, WIDE, SPARSE),
    "megatron-deepspeed": (DENSE, WIDE, SPARSE),
    "deepspeed": (DENSE,),
    "torchtitan": (WIDE,),
    "accelerate": (DENSE,),
    "trainer": (DENSE,),
    "nemo": (DENSE, WIDE, SPARSE),
    "colossalai": (DENSE, SPARSE),
    "torchrun": (DENSE, WIDE),
    "slurm": (DENSE, WIDE),
    "slurm:megatron": (DENSE, SPARSE),
    "slurm:megatron-deepspeed": (DENSE,),
    "kubernetes": (DENSE, WIDE),
    "kubernetes:megatron": (DENSE, SPARSE),
}
# What each file leaves to others: the model, or the sizes of the batch.
BESIDE = {
    "deepspeed": ("model", "seq_len"),
    "accelerate": ("model", "seq_len", "global_batch", "micro_batch"),
    "trainer": ("model", "seq_len"),
    "colossalai": ("model", "seq_len", "global_batch", "micro_batch"),
}
PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "amp-bf16")
RECOMPUTES = (
    *("none", "none", "full", "full", "selective", "sqrt"),
    *("input_norm,mlp_norm", "attention,input_norm,mlp_norm"),
)


@st.composite
def choices(draw: st.DrawFn, target: str, job: Job) -> Uniform:
    """Choices of which many are legal, and many a target's."""
    data = target in ("accelerate", "trainer", "deepspeed")
    wide = not data or (target != "trainer" and draw(st.booleans()))
    tp = draw(st.sampled_from((1, 2, 4))) if wide else 1
    pp = 1 if data and draw(st.booleans()) else draw(st.sampled_from((1, 1, 2, 4)))
    cp = draw(st.sampled_from((1, 1, 1, 2)))
    dp = draw(st.sampled_from((1, 2, 4, 8)))
    virtual = draw(st.sampled_from((1, 1, 2))) if pp > 1 else 1
    zero = draw(st.sampled_from((0, 1, 1) if pp > 1 else (0, 1, 2, 3, 3)))
    group = draw(st.sampled_from([one for one in (1, 2, 4, 8) if dp % one == 0]))
    plain = draw(st.booleans())
    ep = draw(st.sampled_from((1, 2))) if job.has_experts else 1
    precision = draw(st.sampled_from(PRECISIONS))
    return Uniform(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        etp=draw(st.sampled_from((1, tp))) if job.has_experts else 1,
        micro_batch=draw(st.sampled_from((1, 2))),
        schedule="interleaved" if virtual > 1 else "1f1b",
        virtual_stages=virtual,
        zero=zero,
        zero_group=(dp if plain else group) if zero else 1,
        sequence_parallel=tp > 1 and (target == "torchtitan" or draw(st.booleans())),
        recompute=draw(st.sampled_from(RECOMPUTES)),
        recompute_layers=draw(st.sampled_from((None, None, 2))),
        cp_kind=draw(st.sampled_from(("ring", "all-gather", "ulysses")))
        if cp > 1
        else "ring",
        flash_attention=target not in ("megatron", "megatron-deepspeed")
        or draw(st.booleans()),
        precision=precision,
        gradient_format="fp32",
        offload=draw(offloads(zero)),
        zero_plus=draw(zero_pluses(zero, dp * cp, data)),
        layers_per_stage=draw(cuts(job, pp * virtual)),
    )


def offloads(zero: int) -> st.SearchStrategy[Offload]:
    both = Offload(optimizer=True, parameters=zero == 3)
    return st.sampled_from((NOTHING, NOTHING, NOTHING, Offload(optimizer=True), both))


def zero_pluses(zero: int, ranks: int, data: bool) -> st.SearchStrategy[ZeroPlus]:
    if zero < 3 or not data:
        return st.just(PLAIN)
    quantized = ZeroPlus(quantized_weights=True, quantized_gradients=True)
    return st.sampled_from((PLAIN, PLAIN, quantized, ZeroPlus(hpz_partition_size=2)))


def cuts(job: Job, stages: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    """As even as can be, or one layer moved from a stage to the next."""
    body = job.graph.body
    if stages == 1 or body % stages:
        return st.none()
    even = [body // stages] * stages
    moved = even.copy()
    moved[0] += 1
    moved[-1] -= 1
    return st.sampled_from((None, None, tuple(moved)))


def exported(target: str, job: Job, layout: Layout) -> tuple[Run, Mapping[str, str]]:
    """Its files, where the target says the layout at all."""
    try:
        document = layout_document(job, ON.name, layout)
        run = run_of(job, layout, 8, Options(), document)
        return run, exports(run, [target])[target]
    except Unsupported:
        assume(False)
        raise


def read_back(target: str, files: Mapping[str, str], run: Run) -> tuple[Job, Layout]:
    """The job and layout that *files* say, with options for what they do not."""
    beside = BESIDE.get(target, ())
    options: dict[str, Any] = {
        "model": run.job.model,
        "seq_len": run.job.seq_len,
        "global_batch": run.job.global_batch,
    }
    asked = JobOptions(
        gpus=run.gpus, **{name: options[name] for name in beside if name in options}
    )
    pins = Pins(micro_batch=run.choice.micro_batch if "micro_batch" in beside else None)
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        foreign = read_foreign(Path(folder, FILES[target]), run.gpus)
        if foreign.layout is not None:
            own = read_layout_file(foreign.layout)
            return job_of(own), own.layout
        job, held = foreign.question(asked, pins)
        trained = foreign.model(asked.model)
    question = resolve(trained, ON, replace(job, model=None), held)
    layout = spell_out(question.choice, question.job.graph, question.job.global_batch)
    return question.job, layout


@pytest.mark.row(
    "I2",
    "layouts exported and read back, of each format",
    expected="equal",
    evidence="derived",
)
@pytest.mark.parametrize("target", FILES)
def test_what_is_exported_is_read_back_as_it_was(target: str) -> None:
    if FILES[target].endswith(".yaml"):
        pytest.importorskip("yaml", reason="PyYAML reads YAML")
    seen = 0

    @settings(
        max_examples=max(40, settings().max_examples),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def law(data: st.DataObject) -> None:
        nonlocal seen
        job = model(data.draw(st.sampled_from(MODELS[target]))).job(global_batch=64)
        choice = data.draw(choices(target, job))
        assume(not list(violations(choice, job, ON)))
        assume(choice.zero > 0 or choice.dp * choice.cp > 1)  # of one rank all is one
        try:
            layout = spell_out(choice, job.graph, job.global_batch)
        except MeshwrightError:
            assume(False)
            raise
        run, files = exported(target, job, layout)
        found, again = read_back(target, files, run)
        assert again == layout
        assert (found.spec, found.seq_len, found.global_batch, found.optimizer) == (
            job.spec,
            job.seq_len,
            job.global_batch,
            job.optimizer,
        )
        seen += 1

    law()
    assert seen >= 5, "too few layouts that the target says to show anything"
