"""What `simulate --out` writes is priced as what was asked."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodel.machine.framework import frameworks
from costmodel.options.pins import Pins
from costmodel.simulation.pricing import Pricing, from_file, from_options
from profiles.commandline.options import JobOptions
from profiles.errors import InvalidQuestion, MeshwrightError
from profiles.hardware.catalog import cluster
from profiles.samples.files import write_samples
from tests.support.sampled import job as small_job
from tests.support.sampled import samples

DENSE = ("gpt-tiny", "gpt-1.3b", "llama2-7b", "llama3-8b", "qwen3-0.6b")
EXPERTS = ("mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b")
CLUSTERS = (None, "dgx-h100", "p3.16xlarge", "rtx4090-8x", "dgx-b200", "mi300x-8x")
WOVEN = ("interleaved", "zb-v", "dualpipe-v", "chimera", "zb-interleaved")
BESIDE = ("assumed", "warnings")  # how the question was put


def maybe(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from((None, *values))


@st.composite
def questions(draw: st.DrawFn) -> tuple[JobOptions, Pins]:
    """Any question about one layout; many contradict themselves."""
    name = draw(st.sampled_from((*DENSE, *EXPERTS)))
    experts = name in EXPERTS
    tp, pp, cp = (draw(maybe(1, 2, 4)) for _ in "abc")
    dp, size = draw(st.sampled_from((1, 2, 4, 8))), draw(maybe(1, 2, 4))
    wide, deep = (tp or 1) > 1, (pp or 1) > 1
    schedule = draw(maybe("gpipe", "1f1b", "zb-h1", *(WOVEN if deep else ())))
    woven = deep and schedule in (None, "interleaved")
    zero = draw(maybe(0, 1, 2, 3))
    full = zero == 3
    recompute = draw(
        maybe("none", "selective", "cheap-ops", "full", "sqrt", "auto", "mlp_norm")
        | st.just("attention=0.5,input_norm")
    )
    some = recompute not in (None, "none", "auto")
    job = JobOptions(
        model=name,
        gpus=(tp or 1) * (pp or 1) * (cp or 1) * dp,
        cluster=draw(st.sampled_from(CLUSTERS)),
        framework=draw(maybe(*frameworks())),
        global_batch=dp * (size or 1) * draw(st.sampled_from((1, 2, 4, 8))),
        seq_len=draw(maybe(256, 2048)),
        precision=draw(maybe("fp32", "amp-bf16", "fp16", "bf16", "fp8")),
        grad_dtype=draw(maybe("fp32", "bf16")),
        optimizer=draw(maybe("sgd")),
    )
    pins = Pins(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=draw(maybe(2, 4)) if experts else None,
        etp=draw(maybe(1, 2)) if experts else None,
        micro_batch=size,
        schedule=schedule,
        virtual_stages=draw(maybe(2, 4)) if woven else None,
        zero=zero,
        zero_group=draw(maybe(1, dp)) if zero else None,
        zero_quantized_weights=draw(maybe(True)) if full else None,
        zero_hpz_partition_size=draw(maybe(2)) if full else None,
        sequence_parallel=draw(maybe(False, True)) if wide else None,
        cp_kind=draw(maybe("ring", "all-gather", "ulysses")),
        recompute=recompute,
        recompute_layers=draw(maybe(1, 3)) if some else None,
        flash_attention=draw(maybe(False)),
        offload=draw(maybe("optimizer", "activations=0.5", "optimizer,parameters")),
        overlap=draw(maybe("none", "grad", "grad,param", "p2p,offload", "tp")),
        imbalance=draw(maybe(1.0, 2.25)) if experts else None,
        bucket_mb=draw(maybe(1.0, 1000.0)),
    )
    return job, pins


def priced(question: tuple[JobOptions, Pins]) -> Pricing | None:
    with suppress(InvalidQuestion):
        return from_options(*question)
    return None


def same(asked: Pricing, folder: Path) -> None:
    file = folder / "layout.json"
    asked.write(file)
    back = from_file(file, JobOptions(), Pins())
    one, other = asked.estimate.document(), back.estimate.document()
    for key in one.keys() - {*BESIDE}:
        assert other[key] == one[key], key
    assert back.estimate.layout == asked.estimate.layout
    assert back.origin == asked.origin


@pytest.mark.parametrize(
    "examples", [50, pytest.param(3000, marks=pytest.mark.matrix)], ids=str
)
def test_a_layout_file_is_priced_as_its_question(examples: int) -> None:
    """The whole estimate: seconds, bytes piece by piece, breakdown and interval."""

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(questions())
    def reads_back(question: tuple[JobOptions, Pins]) -> None:
        asked = priced(question)
        assume(asked is not None)
        assert asked is not None
        with TemporaryDirectory() as folder:
            same(asked, Path(folder))

    reads_back()


@pytest.mark.parametrize(
    ("framework", "pins", "name"),
    [
        (
            "megatron-deepspeed",
            {"tp": 2, "zero": 3, "recompute": "selective", "sequence_parallel": False},
            "qwen3-0.6b",
        ),
        (
            "megatron-core",
            {"tp": 8, "pp": 2, "cp": 2, "ep": 2, "zero": 2},
            "deepseek-v2",
        ),
    ],
)
def test_what_decides_memory_is_in_the_file(
    framework: str, pins: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """The framework's habits are a tenth of some peaks, and were left out."""
    asked = from_options(
        JobOptions(model=name, gpus=128, framework=framework, global_batch=1024),
        Pins(**pins, zero_group=2),
    )
    same(asked, tmp_path)
    other = from_file(tmp_path / "layout.json", JobOptions(framework="fsdp2"), Pins())
    assert other.estimate.peak_memory_bytes != asked.estimate.peak_memory_bytes


def test_a_cluster_of_ones_own_is_spelled_out(tmp_path: Path) -> None:
    own = tmp_path / "nodes.json"
    own.write_text(json.dumps({**asdict(cluster("dgx-h100")), "name": "ours"}))
    asked = from_options(
        JobOptions(model="gpt-tiny", gpus=2, cluster=str(own)), Pins(tp=2)
    )
    own.unlink()
    same(asked, tmp_path)


def profiled(tmp_path: Path) -> Path:
    """The layout file of a question with measured samples, written beside them."""
    write_samples(samples(small_job(), ranks=2), tmp_path / "samples.json")
    found = JobOptions(model="gpt-tiny", gpus=2, profile=(tmp_path / "samples.json",))
    same(from_options(found, Pins(tp=2)), tmp_path)
    return tmp_path / "layout.json"


def test_the_profile_goes_along(tmp_path: Path) -> None:
    """Named by its place beside the layout, and told by its content."""
    file = profiled(tmp_path)
    assert json.loads(file.read_text())["origin"]["profile_files"] == ["samples.json"]
    moved = tmp_path.rename(tmp_path.parent / "elsewhere") / file.name
    found = from_file(moved, JobOptions(), Pins())
    assert found.estimate.price_sources is not None
    assert found.estimate.warnings == ()


@pytest.mark.parametrize("gone", [True, False])
def test_a_profile_that_is_gone_or_changed_is_said(gone: bool, tmp_path: Path) -> None:
    file = profiled(tmp_path)
    measured = from_file(file, JobOptions(), Pins()).estimate.step_time_s
    document = json.loads(file.read_text())
    document["cluster"] = "dgx-a100-80gb"
    file.write_text(json.dumps(document))
    if gone:
        (tmp_path / "samples.json").unlink()
    else:
        write_samples(samples(small_job(), ranks=4), tmp_path / "samples.json")
    found = from_file(file, JobOptions(), Pins()).estimate
    assert found.price_sources is None
    assert found.step_time_s != measured
    (said,) = found.warnings
    assert ("no such file" if gone else "has others now") in said
    assert "--profile FILE" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": {"imbalance": float(10**19)}}, "between 1 and 100,000"),
        ({"options": {"bucket_mb": -1}}, "bucket_mb must be"),
        ({"options": {"framework": "megatrn-core"}}, "megatron-core"),
        ({"options": {"colour": "red"}}, "colour"),
        ({"profile_files": ["a", "b"]}, "2 paths"),
        ({"estimate": {"step_time_s": 1.0}}, "missing required field"),
    ],
)
def test_a_strangers_origin_is_checked(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    asked = from_options(JobOptions(model="gpt-tiny", gpus=2), Pins(tp=2))
    asked.write(tmp_path / "layout.json")
    document = json.loads((tmp_path / "layout.json").read_text())
    document["origin"] = change
    (tmp_path / "layout.json").write_text(json.dumps(document))
    with pytest.raises(MeshwrightError, match=said) as refused:
        from_file(tmp_path / "layout.json", JobOptions(), Pins())
    assert refused.value.exit_code == 2
