"""What is exported: names that targets accept, refusals with reasons, files written."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.formats.deepspeed import model_states_bytes
from costmodel.formats.setup import Run, run_of
from costmodel.formats.shell import arguments, read_script
from costmodel.formats.targets import TARGETS, WRAPPERS, exports
from costmodel.layout.layout import Layout
from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.options import exports as options
from costmodel.simulation.serialization import Options
from profiles.errors import UnknownName, Unsupported
from profiles.models.catalog import model
from profiles.models.job import Job
from tests.support.commanded import answered, refused, simulate

ACCEPTED: dict[str, Any] = json.loads(
    Path(__file__).with_name("accepted_names.json").read_text(encoding="utf-8")
)
THREE_D = Uniform(
    tp=4,
    pp=2,
    dp=8,
    micro_batch=4,
    zero_group=8,
    sequence_parallel=True,
    recompute="selective",
)
SHARDED = Uniform(dp=16, micro_batch=4, zero=3, zero_group=16, recompute="full")


def run(choice: Uniform, name: str = "gpt-1.3b", batch: int = 512, **more: Any) -> Run:
    job = model(name).job(global_batch=batch)
    layout = spell_out(choice, job.graph, job.global_batch)
    return run_of(job, layout, 8, Options(**more), {"format": "meshwright/layout"})


def names_in(script: str) -> set[str]:
    return set(arguments(read_script(script, "x").commands[-1])[1])


def keys_of(document: dict[str, Any], before: str = "") -> set[str]:
    """Every key of an object, those inside behind a dot."""
    found = set()
    for key, value in document.items():
        inner = f"{before}{key}"
        found.add(inner)
        if isinstance(value, dict):
            found |= keys_of(value, f"{inner}.")
    return found


RICH = (
    run(THREE_D, "gpt-13b", 1536, bucket_mb=40.0),
    run(
        Uniform(tp=2, pp=4, dp=4, cp=2, micro_batch=1, zero_group=2, precision="fp8",
                sequence_parallel=True, recompute="full", recompute_layers=2,
                schedule="interleaved", virtual_stages=2),
        "llama3-8b", 64,
    ),
    run(
        Uniform(tp=2, dp=8, ep=4, micro_batch=1, zero=3, zero_group=8,
                sequence_parallel=True, recompute="attention,input_norm,mlp_norm"),
        "mixtral-8x7b", 64,
    ),
    run(Uniform(dp=8, zero_group=8, offload=Offload(optimizer=True)), "gpt-350m", 64),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(RICH)))
def test_megatron_accepts_every_argument(number: int) -> None:
    script = exports(RICH[number], ["megatron"])["megatron"]["megatron.sh"]
    known = {*ACCEPTED["megatron-lm"]["names"], *ACCEPTED["torchrun"]["names"]}
    assert names_in(script) <= known


def test_megatron_deepspeed_accepts_every_argument() -> None:
    sparse = run(Uniform(dp=8, ep=4, zero_group=8), "mixtral-8x7b", 64)
    for one in (RICH[0], sparse, run(Uniform(dp=8, zero_group=8, recompute="full"))):
        files = exports(one, ["megatron-deepspeed"])["megatron-deepspeed"]
        known = {
            *ACCEPTED["megatron-deepspeed"]["names"],
            *ACCEPTED["torchrun"]["names"],
        }
        assert names_in(files["megatron_deepspeed.sh"]) <= known
        assert keys_of(json.loads(files["ds_config.json"])) <= set(
            ACCEPTED["deepspeed"]["names"]
        )


@pytest.mark.parametrize(
    "choice",
    [
        SHARDED,
        Uniform(dp=8, pp=2, zero_group=8, recompute="full"),
        Uniform(
            dp=8,
            zero=3,
            zero_group=8,
            offload=Offload(optimizer=True, parameters=True, tier="nvme"),
        ),
        Uniform(tp=2, dp=4, zero=2, zero_group=4, precision="amp-bf16"),
        Uniform(cp=2, dp=4, zero=3, zero_group=2, cp_kind="ulysses"),
    ],
)
def test_deepspeed_accepts_every_key(choice: Uniform) -> None:
    files = exports(run(choice, bucket_mb=100.0), ["deepspeed"])["deepspeed"]
    keys = keys_of(json.loads(files["ds_config.json"]))
    assert keys <= set(ACCEPTED["deepspeed"]["names"])


def test_torchtitan_accepts_every_key() -> None:
    choice = Uniform(tp=2, pp=4, dp=4, cp=2, micro_batch=1, zero_group=2,
                     sequence_parallel=True, recompute="full", recompute_layers=2,
                     schedule="interleaved", virtual_stages=2,
                     cp_kind="all-gather")  # fmt: skip
    found = exports(run(choice, "llama3-8b", 64), ["torchtitan"])["torchtitan"]
    keys = keys_of(tomllib.loads(found["torchtitan.toml"]))
    assert keys <= set(ACCEPTED["torchtitan-0.2"]["names"])
    assert attributes(found["torchtitan_config.py"], "found") <= set(
        ACCEPTED["torchtitan-0.3"]["names"]
    )


def attributes(source: str, name: str) -> set[str]:
    """`a.b` of every `name.a.b = …`."""
    return {
        ast.unparse(target).removeprefix(f"{name}.")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if ast.unparse(target).startswith(f"{name}.")
    }


def test_nemo_accepts_every_field() -> None:
    known = set(ACCEPTED["megatron-bridge"]["names"])
    for one in (*RICH[:1], RICH[2], RICH[3]):
        source = exports(one, ["nemo"])["nemo"]["nemo_recipe.py"]
        assert attributes(source, "config") <= known
        calls = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) == "GPTModelProvider"
        ]
        fields = {f"model.{word.arg}" for word in calls[0].keywords}
        assert fields <= known


def test_hugging_face_accepts_every_key() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML reads YAML")
    hybrid = Uniform(dp=16, zero=2, zero_group=8)
    offloaded = Uniform(dp=8, zero_group=8, offload=Offload(optimizer=True))
    plain = Uniform(dp=8, zero=0, precision="amp-bf16")
    megatron = Uniform(tp=2, pp=2, dp=2, zero_group=2, sequence_parallel=True)
    for choice in (SHARDED, hybrid, offloaded, plain, megatron):
        found = exports(run(choice), ["accelerate"])["accelerate"]
        document = yaml.safe_load(found["accelerate.yaml"])
        assert keys_of(document) <= set(ACCEPTED["accelerate"]["names"])
    for choice in (SHARDED, offloaded, plain):
        found = exports(run(choice), ["trainer"])["trainer"]
        document = json.loads(found["training_arguments.json"])
        assert keys_of(document) <= set(ACCEPTED["transformers"]["names"])


def test_deepspeed_of_the_trainer_says_auto_where_both_would_say_it() -> None:
    offloaded = Uniform(dp=8, zero_group=8, offload=Offload(optimizer=True))
    files = exports(run(offloaded), ["trainer"])["trainer"]
    document = json.loads(files["ds_config.json"])
    assert document["train_batch_size"] == "auto"
    assert document["bf16"] == {"enabled": "auto"}
    assert document["zero_optimization"]["stage"] == 1


@pytest.mark.row(
    "I6",
    "degrees, batch, recompute and ZeRO in both sets of arguments",
    expected="equal",
    evidence="derived",
)
def test_two_megatrons_say_the_same() -> None:
    """Row I6: equal (t, p, d, v, micro-batch, batch, recompute, ZeRO)."""
    for choice in (THREE_D, Uniform(tp=2, pp=4, dp=8, zero_group=8, recompute="full"),
                   Uniform(tp=2, dp=8, zero=0, recompute="full",
                           recompute_layers=3)):  # fmt: skip
        found = exports(run(choice), ["megatron", "megatron-deepspeed"])
        scripts = [
            arguments(read_script(text, "x").commands[-1])[1]
            for text in (
                found["megatron"]["megatron.sh"],
                found["megatron-deepspeed"]["megatron_deepspeed.sh"],
            )
        ]
        own, other = scripts
        for name in (
            "nproc-per-node",
            "nnodes",
            "tensor-model-parallel-size",
            "pipeline-model-parallel-size",
            "num-virtual-stages-per-pipeline-rank",
            "micro-batch-size",
            "global-batch-size",
            "sequence-parallel",
            "recompute-granularity",
            "recompute-method",
            "recompute-num-layers",
        ):
            assert own.get(name) == other.get(name), name
        level = int("use-distributed-optimizer" in own)
        assert other["zero-stage"] == str(level)


@pytest.mark.row(
    "I1",
    "layouts that its plugin has no argument for, as those of other targets",
    expected="refused",
    evidence="derived",
)
@pytest.mark.parametrize(
    ("target", "choice", "said"),
    [
        ("megatron", Uniform(dp=8, zero=2, pp=2, zero_group=8), "not with pipelines"),
        ("megatron", Uniform(dp=8, zero_group=8, recompute="cheap-ops"), "activation"),
        ("megatron", Uniform(pp=2, dp=8, zero_group=8, schedule="zb-h1"), "zb-h1"),
        ("megatron-deepspeed", Uniform(pp=2, dp=8, zero=3, zero_group=8), "ZeRO-3"),
        (
            "megatron-deepspeed",
            Uniform(pp=2, dp=8, zero_group=8, schedule="interleaved", virtual_stages=2),
            "interleaved",
        ),
        ("deepspeed", THREE_D, "AutoTP"),
        ("deepspeed", Uniform(dp=8, zero_group=8, flash_attention=False), "script"),
        ("torchtitan", SHARDED, "no flavor of gpt-1.3b"),
        ("accelerate", Uniform(cp=2, dp=8, zero=2, zero_group=8), "of its engines"),
        ("trainer", Uniform(dp=16, zero=3, zero_group=8), "accelerate"),
        ("nemo", Uniform(dp=8, zero_group=8, flash_attention=False), "fused"),
        ("colossalai", Uniform(dp=8, zero_group=8, recompute="selective"), "selective"),
        ("torchrun", Uniform(dp=8, zero=0, precision="tf32", cp=2, cp_kind="rsa",
                             flash_attention=False), "not supported by"),
    ],
)  # fmt: skip
def test_what_a_target_cannot_express_is_refused_with_the_reason(
    target: str, choice: Uniform, said: str
) -> None:
    with pytest.raises(Unsupported, match=said):
        exports(run(choice), [target])


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "torchrun"])
def test_compressed_gradients_are_in_no_other_file_than_ours(target: str) -> None:
    replicas = Uniform(dp=16, zero=0, precision="amp-bf16")
    with pytest.raises(Unsupported, match="sent as powersgd:4"):
        exports(run(replicas, "llama3-8b", compress_gradients="powersgd:4"), [target])


def test_the_script_of_a_module_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its layout file does, and no file decides what is imported."""
    named = ("--model", "tests.support.user_modules:odd")
    asked = (
        *named,
        "--gpus",
        "2",
        "--export",
        "torchrun",
        "--export-to",
        str(tmp_path),
    )
    files = answered_with_notes(capsys, *asked)["exports"]["torchrun"]
    assert " ".join(named) in files["torchrun.sh"]


def test_the_names_of_targets_are_those_of_the_options() -> None:
    assert (*TARGETS, *WRAPPERS) == options.TARGETS
    with pytest.raises(UnknownName, match="megatron"):
        exports(run(SHARDED), ["megatorn"])


def test_wrappers_start_the_inner_target_on_every_node() -> None:
    found = exports(run(SHARDED), ["slurm:trainer", "kubernetes:trainer"])
    batch = found["slurm:trainer"]["slurm.sbatch"]
    assert "#SBATCH --nodes=2" in batch
    assert "#SBATCH --gpus-per-node=8" in batch
    assert "torchrun --node-rank $NODE_RANK" in batch
    yaml = pytest.importorskip("yaml", reason="PyYAML reads YAML")
    job = yaml.safe_load(found["kubernetes:trainer"]["trainjob.yaml"])
    assert job["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    old = yaml.safe_load(found["kubernetes:trainer"]["pytorchjob.yaml"])
    assert old["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1


@pytest.mark.parametrize(
    ("target", "choice"),
    [
        ("megatron", THREE_D),
        ("megatron-deepspeed", THREE_D),
        ("slurm:megatron", THREE_D),
        ("slurm:accelerate", SHARDED),
        ("slurm", SHARDED),
        ("deepspeed", SHARDED),
    ],
)
def test_scripts_are_shell(target: str, choice: Uniform, tmp_path: Path) -> None:
    """Read, not run."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("bash is not installed")
    for name, text in exports(run(choice), [target])[target].items():
        if name.endswith((".sh", ".sbatch")):
            (tmp_path / name).write_text(text, encoding="utf-8")
            subprocess.run([shell, "-n", str(tmp_path / name)], check=True)


def test_files_are_written_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ("--model", "gpt-1.3b", "--gpus", "16", "--zero", "3")
    more = ("--micro-batch", "4", "--global-batch", "512", "--framework", "fsdp2")
    into = ("--export-to", str(tmp_path / "out"))
    said = refused(capsys, *question, *more, "--export", "trainer,megatron-lm", *into)
    assert "megatron" in said
    said = refused(capsys, *question, "--pp", "2", "--export", "trainer,nemo", *into)
    assert "--export" in said
    assert not (tmp_path / "out").exists()
    both = ("--export", "trainer", "--export", "deepspeed")
    assert simulate(*question, *more, *both, *into, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    for target, files in document["exports"].items():
        for name, text in files.items():
            assert (tmp_path / "out" / target / name).read_text("utf-8") == text


def test_a_layout_file_is_exported_and_its_own_file_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = tmp_path / "layout.json"
    question = ("--model", "gpt-350m", "--gpus", "8", "--out", str(layout))
    assert simulate(*question, "--executable") in (0, 2)
    assert simulate(*question) == 0
    capsys.readouterr()
    said = refused(
        capsys, str(layout), "--export", "torchrun", "--export-to", str(tmp_path)
    )
    assert "write over" in said
    found = answered_with_notes(
        capsys, str(layout), "--export", "torchrun", "--export-to", str(tmp_path / "x")
    )
    kept = json.loads(found["exports"]["torchrun"]["layout.json"])
    assert kept["layout"] == json.loads(layout.read_text("utf-8"))["layout"]


def answered_with_notes(
    capsys: pytest.CaptureFixture[str], *argv: str
) -> dict[str, Any]:
    assert simulate(*argv, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_export_to_needs_something_to_export(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--export" in refused(capsys, "--model", "gpt-350m", "--export-to", "x")


@pytest.mark.parametrize("gpus", [1, 7, 8, 64, 1000])
def test_deepspeed_s_own_estimators(gpus: int) -> None:
    """Row I2: `2 P + 18 P / N` and `4 L + 18 P / N`, exactly."""
    total, largest = 1_313_722_368, 51_200 * 2048
    shards = int(18 * total / gpus)
    two = model_states_bytes(total, largest, zero=2, gpus=gpus)
    three = model_states_bytes(total, largest, zero=3, gpus=gpus)
    assert (two, three) == (2 * total + shards, 4 * largest + shards)
    away = Offload(optimizer=True)
    assert model_states_bytes(total, largest, zero=2, gpus=gpus, offload=away) == (
        2 * total
    )


def test_its_estimate_stands_beside_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ("--model", "gpt-1.3b", "--gpus", "16", "--zero", "3")
    into = ("--framework", "deepspeed", "--export", "deepspeed")
    assert simulate(*question, *into, "--export-to", str(tmp_path)) == 0
    assert "DeepSpeed's own estimator" in capsys.readouterr().err
    file = str(tmp_path / "ds_config.json")
    document = answered(capsys, "--from", file, "--model", "gpt-1.3b", "--gpus", "16")
    states = document["from"]["deepspeed_estimate"]
    assert states["bytes_per_gpu"] == 4 * states["largest_module"] + int(
        18 * states["parameters"] / 16
    )


def test_a_job_of_another_kind_is_refused() -> None:
    bert = model("bert-large")
    job = Job(model="bert-large", spec=bert.spec, seq_len=512, global_batch=64)
    own = run(SHARDED)
    other = Run(job=job, said=own.said, layout=own.layout, gpus_per_node=8)
    with pytest.raises(Unsupported):
        exports(other, ["megatron"])


def test_layouts_that_no_numbers_say_are_refused() -> None:
    job = model("gpt-350m").job(global_batch=64)
    layout = spell_out(Uniform(pp=2, dp=4, zero_group=4), job.graph, 64)
    mixed = replace(
        layout.stages[0],
        plans=tuple(
            replace(plan, zero=2 if place == 3 else 1)
            for place, plan in enumerate(layout.stages[0].plans)
        ),
    )
    unlike: Layout = replace(layout, stages=(mixed, layout.stages[1]))
    found = run_of(job, unlike, 8, Options(), {"format": "meshwright/layout"})
    with pytest.raises(Unsupported, match="ZeRO-mixed"):
        exports(found, ["megatron"])
    with pytest.raises(Unsupported, match="not supported by"):
        exports(found, ["torchrun"])


def test_our_own_executor_is_given_any_layout_that_it_runs() -> None:
    job = model("gpt-350m").job(global_batch=64)
    layout = spell_out(Uniform(pp=2, dp=4, zero_group=4), job.graph, 64)
    again = spell_out(
        Uniform(pp=2, dp=4, zero_group=4, recompute="full"), job.graph, 64
    )
    mixed = replace(layout, stages=(again.stages[0], layout.stages[1]))
    found = run_of(job, mixed, 8, Options(), {"format": "meshwright/layout"})
    assert found.said is None
    files = exports(found, ["torchrun", "slurm"])
    assert "meshwright execute" in files["torchrun"]["torchrun.sh"]
    with pytest.raises(Unsupported):
        exports(found, ["megatron"])


@pytest.mark.parametrize("schedule", ["1f1b", "2bw"])
def test_our_own_executor_is_told_where_steps_are_not_flushed(schedule: str) -> None:
    job = model("gpt-350m").job(global_batch=64)
    choice = Uniform(pp=2, dp=4, zero=0, precision="fp32", schedule=schedule)
    layout = spell_out(choice, job.graph, 64)
    found = run_of(job, layout, 8, Options(), {"format": "meshwright/layout"})
    (script, _) = exports(found, ["torchrun"])["torchrun"].values()
    assert ("--allow-async" in script) == (schedule == "2bw")
