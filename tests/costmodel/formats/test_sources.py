"""Files of other frameworks: what they say, what is missing, and what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.formats.commands import present
from costmodel.formats.setup import run_of
from costmodel.formats.sources import read_foreign
from costmodel.formats.targets import exports
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.options import Pins
from costmodel.simulation.layout_files import read_layout_file, write_layout
from costmodel.simulation.serialization import Options
from profiles.commandline import JobOptions
from profiles.errors import (
    Contradiction,
    InvalidFile,
    InvalidQuestion,
    MeshwrightError,
    Unsupported,
)
from profiles.models.catalog import model

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
MEGATRON = EXAMPLES / "megatron_gpt3_175b.sh"
DEEPSPEED = EXAMPLES / "deepspeed_zero3.json"
TORCHTITAN = EXAMPLES / "torchtitan_llama3_70b.toml"
ARGUMENTS = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 "
    "--vocab-size 51200 --bf16 "
)


def written(folder: Path, text: str, name: str = "args.sh") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def pins_of(folder: Path, more: str, gpus: int = 16) -> Any:
    return read_foreign(written(folder, ARGUMENTS + more), gpus).pins


def test_a_public_script_of_megatron() -> None:
    found = read_foreign(MEGATRON)
    assert (found.framework, found.job.gpus, found.job.global_batch) == (
        "megatron-core",
        1024,
        1536,
    )
    assert (found.pins.tp, found.pins.pp, found.pins.dp) == (8, 16, 8)
    assert (found.pins.zero, found.pins.micro_batch) == (0, 1)
    assert found.job.precision == "fp16"
    assert found.job.grad_dtype == "fp16"
    assert found.pins.overlap == "offload"
    assert found.assumed["vocab"] == 50257
    assert found.shape is not None
    assert found.shape["layers"] == 96
    assert "--rampup-batch-size" in found.warnings[0]
    assert {"--lr", "--data-path", "--log-interval"} <= set(found.ignored)


def test_a_public_configuration_of_deepspeed() -> None:
    found = read_foreign(DEEPSPEED, 16)
    assert (found.pins.zero, found.pins.offload) == (3, "optimizer,parameters")
    assert (found.pins.micro_batch, found.job.global_batch) == (4, 256)
    assert found.pins.recompute == "full"
    assert found.shape is None
    assert found.warnings == ()


def test_a_public_configuration_of_torchtitan() -> None:
    found = read_foreign(TORCHTITAN, 256)
    assert (found.named, found.framework) == ("llama3-70b", "torchtitan")
    assert (found.pins.tp, found.pins.dp, found.pins.zero) == (8, 32, 3)
    assert (found.pins.micro_batch, found.job.global_batch) == (8, 256)
    assert found.assumed == {
        "global_batch": 256,
        "mixed_precision_param": "bfloat16",
        "fsdp_reshard_after_forward": "default",
    }
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ("", "zero", 0),
        ("--use-distributed-optimizer", "zero", 1),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
            "zero",
            2,
        ),
        ("--use-torch-fsdp2", "zero", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", "zero", 2),
        (
            "--use-distributed-optimizer --num-distributed-optimizer-instances 4",
            "zero_group",
            4,
        ),
        ("--recompute-activations", "recompute", "selective"),
        ("--checkpoint-activations", "recompute", "full"),
        (
            (
                "--recompute-granularity full --recompute-method block "
                "--recompute-num-layers 3"
            ),
            "recompute_layers",
            3,
        ),
        (
            (
                "--recompute-granularity full --recompute-method uniform "
                "--recompute-num-layers 5"
            ),
            "recompute",
            "sqrt",
        ),
        (
            "--recompute-granularity selective --recompute-modules layernorm",
            "recompute",
            "input_norm,mlp_norm",
        ),
        ("--pipeline-model-parallel-size 4", "stage_layers", "6,6,6,6"),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3",
            "stage_layers",
            "3,7,7,7",
        ),
        (
            (
                "--pipeline-model-parallel-size 2 "
                "--num-layers-per-virtual-pipeline-stage 6"
            ),
            "virtual_stages",
            2,
        ),
        (
            (
                "--pipeline-model-parallel-size 4 "
                "--pipeline-model-parallel-layout 'Et*5|(t*6|)*2t*7,L'"
            ),
            "stage_layers",
            "5,6,6,7",
        ),
        ("--attention-backend unfused", "flash_attention", False),
        ("--context-parallel-size 2 --cp-comm-type a2a", "cp_kind", "ulysses"),
        ("--optimizer-cpu-offload", "offload", "optimizer"),
        ("--cpu-offloading-num-layers 12", "offload", "activations=0.5"),
        ("--ddp-bucket-size 10000000", "bucket_mb", 40.0),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel",
            "sequence_parallel",
            True,
        ),
    ],
)
def test_arguments_of_megatron(
    tmp_path: Path, more: str, name: str, value: object
) -> None:
    assert getattr(pins_of(tmp_path, more), name) == value


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ("--global-batch-size many", InvalidFile, "global-batch-size many"),
        ("--global-batch-size $SIZE", InvalidFile, "which the file does not set"),
        ("--tensor-model-parallel-size 3", Contradiction, "3 × 1 × 1"),
        ("--pipeline-model-parallel-size 5 --fp16", Contradiction, "do not"),
        ("--fp16", Contradiction, "exclude each other"),
        ("--pipeline-model-parallel-size 16", Contradiction, "do not share out"),
        (
            "--recompute-granularity selective --recompute-modules mlp",
            Unsupported,
            "mlp",
        ),
        ("--recompute-granularity full --recompute-num-layers 7", Unsupported, "root"),
        ("--hybrid-override-pattern M*M", Unsupported, "hybrid-override-pattern"),
        ("--num-experts 8 --moe-layer-freq [1]*3", InvalidFile, "moe-layer-freq"),
        ("--seq-length -5", InvalidFile, "seq_length|seq-length"),
        ("--hidden-size 99999999999999999999", InvalidFile, "hidden-size"),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, more: str, error: type[MeshwrightError], said: str
) -> None:
    with pytest.raises(error, match=said):
        pins_of(tmp_path, more, gpus=20 if "size 5" in more else 16)


def test_unknown_arguments_are_warned_of(tmp_path: Path) -> None:
    found = read_foreign(
        written(tmp_path, ARGUMENTS + "--no-rope-fusion --wandb-project x"), 8
    )
    assert [one.split()[0] for one in found.warnings] == ["--no-rope-fusion"]
    assert found.ignored == ("--wandb-project",)


def test_a_moe_model_of_megatron(tmp_path: Path) -> None:
    more = (
        "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 --swiglu "
        "--moe-layer-freq ([0]*1+[1]*23) --expert-model-parallel-size 4"
    )
    found = read_foreign(
        written(
            tmp_path, ARGUMENTS + f"{more}".replace("(", "'(", 1).replace(")", ")'", 1)
        ),
        8,
    )
    moe: Any = found.model(None).spec
    assert (moe.moe.experts, moe.moe.first_layer, moe.moe.every) == (8, 1, 1)
    assert (found.pins.ep, found.pins.etp) == (4, 1)


def test_a_mixture_with_dense_layers_first_is_read_back(tmp_path: Path) -> None:
    job = model("deepseek-v3").job(global_batch=256)
    choice = Uniform(
        tp=2, dp=16, ep=8, micro_batch=1, zero_group=16, sequence_parallel=True
    )
    run = run_of(job, spell_out(choice, job.graph, 256), 8, Options(), {})
    text = exports(run, ["megatron"])["megatron"]["megatron.sh"]
    assert read_foreign(written(tmp_path, text)).model(None).spec == job.spec


def test_a_batch_script_of_old(tmp_path: Path) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -p batch --nodes=4\n#SBATCH --nodes=4\n"
        '#SBATCH --gres=gpu:8\nset -x\nif [ -z "$TP" ]; then TP_=1; fi\n'
        'DIR=`pwd`\noptions=" \\\n --tensor-model-parallel-size 2 \\\n '
        f'{ARGUMENTS}"\n'
        'run_cmd="python -u ${DIR}/pretrain_gpt.py $@ ${options}"\n'
        'srun -l --output=$DIR/logs/%x.log sh -c "${run_cmd}" 2>&1 | tee out.log\n'
    )
    found = read_foreign(written(tmp_path, text))
    assert (found.job.gpus, found.pins.tp, found.pins.dp) == (32, 2, 16)
    assert found.job.precision == "bf16"


def test_megatron_deepspeed_with_a_here_document(tmp_path: Path) -> None:
    text = (
        "TP=2\nDS=ds.json\ncat <<EOT > $DS\n"
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,\n'
        ' "zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}\nEOT\n'
        f"deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py {ARGUMENTS} "
        "--tensor-model-parallel-size $TP --no-pipeline-parallel --deepspeed "
        "--deepspeed_config=$DS --zero-stage=1"
    )
    found = read_foreign(written(tmp_path, text))
    assert (found.framework, found.job.gpus) == ("megatron-deepspeed", 16)
    assert (found.pins.tp, found.pins.dp, found.pins.zero) == (2, 8, 1)
    with pytest.raises(Contradiction, match="zero 2"):
        read_foreign(
            written(tmp_path, text.replace("--zero-stage=1", "--zero-stage=2"))
        )


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2},
            "train_batch_size",
        ),
        ({"zero_optimization": {"stage": 4}}, "stage"),
        ({"zero_optimization": [1]}, "an object"),
        ({"train_batch_size": 16, "zero_optimization": {"stage": "three"}}, "stage"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "exclude"),
        ({"bf16": {"enabled": True}, "optimizer": {"type": "Lion"}}, "Lion"),
        ({"something": 1}, "no format"),
        ([], "an object"),
    ],
)
def test_wrong_configurations_are_named(
    tmp_path: Path, document: object, said: str
) -> None:
    path = written(tmp_path, json.dumps(document), "ds.json")
    with pytest.raises((InvalidFile, Contradiction), match=said):
        read_foreign(path, 8)


def test_what_is_auto_is_asked_for(tmp_path: Path) -> None:
    document = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": "auto"},
    }
    found = read_foreign(written(tmp_path, json.dumps(document), "ds.json"), 8)
    assert found.pins.micro_batch is None
    assert {"micro_batch", "global_batch"} <= found.lacks.keys()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.toml", "[training\nseq_len = 1"),
        ("x.toml", "[parallelism]\ntensor_parallel_degree = 'eight'"),
        ("x.json", '{"train_batch_size": NaN}'),
        ("x.json", '{"a":' * 5000),
        ("x.sh", "echo hello"),
        ("x.sh", ""),
        ("x.yaml", "a: [1, 2"),
        ("x.yaml", "distributed_type: FSDP\nnum_processes: many"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, text: str) -> None:
    if name.endswith("yaml"):
        pytest.importorskip("yaml", reason="PyYAML reads YAML")
    with pytest.raises((InvalidFile, Contradiction)):
        read_foreign(written(tmp_path, text, name), 8)


def test_a_file_that_is_too_large_or_binary_is_refused(tmp_path: Path) -> None:
    large = written(tmp_path, "x" * 300_000)
    with pytest.raises(InvalidFile, match="larger"):
        read_foreign(large)
    binary = tmp_path / "b.sh"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile, match="UTF-8"):
        read_foreign(binary)


def test_values_that_stand_for_others_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML reads YAML")
    bomb = "a: &a [x, x]\n" + "\n".join(
        f"{name}: &{name} [*{before}, *{before}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(InvalidFile, match="alias"):
        read_foreign(written(tmp_path, bomb, "x.yaml"), 8)


def test_other_folders_are_not_looked_in(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    written(tmp_path, "{}", "ds.json")
    document = {"per_device_train_batch_size": 1, "deepspeed": "../ds.json"}
    path = written(tmp_path / "inner", json.dumps(document), "args.json")
    with pytest.raises(Contradiction, match="not beside it"):
        read_foreign(path, 8)


LAUNCH = "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\nsrun meshwright execute "


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """A layout file of 8 GPUs."""
    job = model("gpt-350m").job(global_batch=64)
    found = spell_out(Uniform(tp=2, dp=4, zero_group=4), job.graph, 64)
    path = tmp_path / "layout.json"
    write_layout(path, job, "dgx-a100-80gb", found)
    return path


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUNCH.replace("=2", "=4") + "layout.json", "4 nodes × 4 processes = 16.*8"),
        ("meshwright execute layout.json --nnodes 3", "3 nodes.*8"),
        (LAUNCH + "other.json", "other.json, which is not beside it"),
        (LAUNCH + "$LAYOUT", "must be the layout file"),
        ("bash torchrun.sh", "torchrun.sh, which is not beside it"),
        ("bash args.sh", "no command"),
    ],
)
def test_launchers_that_start_something_else_are_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises((InvalidFile, Contradiction), match=said):
        read_foreign(written(tmp_path, text))


def test_a_launcher_is_priced_as_the_layout_that_it_starts(
    tmp_path: Path, layout: Path
) -> None:
    found = present(written(tmp_path, LAUNCH + "layout.json"), JobOptions(), Pins())
    assert found.pricing.estimate.layout == read_layout_file(layout).layout
    assert found.file.name == "args.sh"


TRAIN_JOB = """
kind: TrainJob
spec:
  trainer:
    numNodes: 2
    numProcPerNode: auto
    resourcesPerNode: {limits: {nvidia.com/gpu: 4}}
    command: [bash, -c]
    args: ["cd /config && exec meshwright execute /config/layout.json"]
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[bash, -c]", "{a: b}", "a list of text"),
        ("args", "more", "no command"),
        ("command: [bash, -c]\n    args:", "other:", "has no command, which"),
        ("gpu: 4", "gpu: 8", "2 nodes × 8 processes = 16"),
        ("numNodes: 2", "numNodes: two", "numNodes"),
        ("kind: TrainJob", "kind: Deployment", "TrainJob, PyTorchJob"),
    ],
)
def test_manifests(tmp_path: Path, layout: Path, old: str, new: str, said: str) -> None:
    pytest.importorskip("yaml", reason="PyYAML reads YAML")
    assert read_foreign(written(tmp_path, TRAIN_JOB, "job.yaml")).layout == layout
    wrong = written(tmp_path, TRAIN_JOB.replace(old, new), "job.yaml")
    with pytest.raises((InvalidFile, Contradiction), match=said):
        read_foreign(wrong)


def test_the_package_that_reads_manifests_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"yaml.*pip install 'meshwright\[yaml\]'"):
        read_foreign(written(tmp_path, TRAIN_JOB, "job.yaml"))


RECIPE = """
def pretrain_config():
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
    ddp.overlap_grad_reduce = True
    model = GPTModelProvider(
        num_layers=24, hidden_size=1024, num_attention_heads=16, num_query_groups=4,
        vocab_size=32000, seq_length=2048, tensor_model_parallel_size=2,
        gated_linear_unit=True, activation_func=F.silu, add_bias_linear=False,
    )
    model.pipeline_model_parallel_size = 4
    return ConfigContainer(
        model=model, ddp=ddp, mixed_precision=bf16_mixed(),
        train=TrainingConfig(micro_batch_size=2, global_batch_size=64, eval_iters=N),
    )
"""
PLUGIN = "plugin = HybridParallelPlugin(tp_size=2, pp_size=2, zero_stage=1)"


def test_a_recipe_of_one_s_own(tmp_path: Path) -> None:
    found = read_foreign(written(tmp_path, RECIPE, "recipe.py"), 16)
    assert (found.framework, found.job.precision) == ("megatron-bridge", "bf16")
    assert (found.pins.tp, found.pins.pp, found.pins.dp) == (2, 4, 2)
    assert (found.pins.zero, found.pins.micro_batch) == (1, 2)
    assert found.shape is not None
    assert (found.shape["kv_heads"], found.shape["ffn_hidden"]) == (4, 4096)
    assert found.ignored == ("eval_iters",)


def test_a_plugin_of_one_s_own(tmp_path: Path) -> None:
    script = f"{PLUGIN}\nmodel.gradient_checkpointing_enable()\n"
    found = read_foreign(written(tmp_path, script, "train.py"), 16)
    assert (found.framework, found.job.precision) == ("colossal-ai", "fp16")
    assert (found.pins.tp, found.pins.pp, found.pins.dp) == (2, 2, 4)
    assert found.pins.recompute == "full"
    script = "GeminiPlugin(tp_size=2, extra_dp_size=2, enable_all_optimization=True)"
    found = read_foreign(written(tmp_path, script, "train.py"), 16)
    assert (found.pins.zero, found.pins.dp, found.pins.zero_group) == (3, 8, 4)
    assert found.pins.flash_attention


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RECIPE.replace("batch_size=2", "batch_size=N * 2"), "line 13: micro_batch"),
        (RECIPE.replace("_size = 4", "_size = args.pp"), "line 10: pipeline_model"),
        (RECIPE.replace("    model.p", "    if big:\n        model.p"), "line 11"),
        (f"{RECIPE}\ncfg.model.num_layers = 4", "line 16: num_layers is computed"),
        (RECIPE.replace("num_layers=24,", "**shape,"), "line 5"),
        (RECIPE.replace("bf16_mixed()", "own()"), "mixed_precision own"),
        (RECIPE + RECIPE, "lines: 5, 19"),
        (RECIPE.replace("F.silu", "F.gelu"), "gated gelu"),
        ("import os", "lines: none"),
        ("def f(:", "not whole Python, line 1"),
        ("(" * 5000, "not whole Python"),
        (PLUGIN.replace("=2,", "=world // 2,", 1), "line 1: tp_size is computed"),
        (PLUGIN.replace("zero_stage=1", "pp_style='gpipe'"), "pp_style gpipe"),
        (f"if zero:\n  {PLUGIN}", "line 2: tp_size is computed, or"),
    ],
)  # fmt: skip
def test_python_that_is_not_plain_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises((InvalidFile, Unsupported), match=said):
        read_foreign(written(tmp_path, text, "recipe.py"), 16)


EDITS = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.sampled_from(("cut", "put", "swap")),
        st.text(alphabet="0-9.eE\"'{}[]$()=,:#\\\n -x", max_size=6),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize(
    "file",
    [MEGATRON, DEEPSPEED, TORCHTITAN, Path("recipe.py"), Path("job.yaml")],
    ids=lambda one: one.stem,
)
@pytest.mark.usefixtures("layout")
def test_any_damage_is_read_or_refused_in_our_own_words(
    tmp_path: Path, file: Path
) -> None:
    if file.suffix == ".yaml":
        pytest.importorskip("yaml", reason="PyYAML reads YAML")
    here = {"recipe.py": RECIPE, "job.yaml": TRAIN_JOB}
    text = here.get(file.name) or file.read_text(encoding="utf-8")
    target = tmp_path / file.name
    known = model("llama2-13b")

    @settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(EDITS)
    def law(edits: list[tuple[int, str, str]]) -> None:
        damaged = text
        for place, kind, put in edits:
            at = place % (len(damaged) + 1)
            if kind == "cut":
                damaged = damaged[:at] + damaged[at + len(put) + 1 :]
            elif kind == "put":
                damaged = damaged[:at] + put + damaged[at:]
            else:
                damaged = damaged[:at] + put + damaged[at + len(put) :]
        target.write_text(damaged, encoding="utf-8")
        with suppress(InvalidQuestion):  # anything else is a mistake of ours
            found = read_foreign(target, 64)
            found.model(None if found.shape or found.named else known.name)

    law()
