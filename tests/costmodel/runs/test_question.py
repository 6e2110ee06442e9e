"""Cells of a row become a question; what is missing or wrong is named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from costmodel.layout.offload import Offload
from costmodel.runs.cells import Cells
from costmodel.runs.pricing import Questions, ask_runs, price_runs
from costmodel.runs.table import Run
from costmodel.simulation.question import Question
from profiles.errors import MeshwrightError
from profiles.models.catalog import model
from profiles.models.lora import Adapters
from profiles.models.spec import DecoderSpec
from profiles.units import GB
from tests.support.full_row import FULL


def asked(changes: Mapping[str, str | None] | None = None) -> Question:
    cells = {**FULL, **(changes or {})}
    return Questions().question(Cells(text={k: v for k, v in cells.items() if v}))


def refused(**changes: str | None) -> str:
    with pytest.raises(MeshwrightError) as caught:
        asked(changes)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_everything_said_is_taken_and_little_assumed() -> None:
    question = asked()
    choice, job = question.choice, question.job
    assert (choice.tp, choice.pp, choice.dp, choice.cp) == (2, 2, 4, 1)
    assert (choice.micro_batch, choice.zero, choice.zero_group) == (2, 1, 4)
    assert choice.sequence_parallel
    assert choice.flash_attention
    assert (choice.recompute, choice.precision) == ("full", "bf16")
    assert (job.seq_len, job.global_batch) == (1024, 64)
    assert question.machine.framework.name == "megatron-lm"
    assert set(question.assumed) == {"dropout", "optimizer", "grad_dtype"}
    assert question.warnings == ()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("kv_heads", 16),
        ("head_dim", None),
        ("ffn_hidden", 4096),
        ("gated_mlp", False),
        ("tied_embeddings", True),
        ("vocab", 51200),
        ("tp", 1),
        ("cp", 1),
        ("virtual_stages", 1),
        ("schedule", "1f1b"),
        ("zero", 0),
        ("sequence_parallel", False),
        ("precision", "bf16"),
        ("recompute", "none"),
        ("fused_norm", True),
        ("framework", "meshwright"),
    ],
)
def test_an_empty_cell_is_filled_and_named(column: str, value: object) -> None:
    left_out: dict[str, str | None] = {column: None}
    if column in ("tp", "zero"):
        left_out |= {"dp": None, "zero_group": None}
    assert asked(left_out).assumed.get(column) == value


def test_gpus_and_dp_fill_each_other() -> None:
    assert asked({"dp": None, "zero_group": None}).assumed["dp"] == 4
    assert asked({"gpus": None}).assumed["gpus"] == 16


def test_nanotron_cuts_stages_of_equal_cost() -> None:
    """The head of 51,200 columns is as much work as three such layers."""
    gated = {"framework": "nanotron", "gated_mlp": "y"}
    assert asked(gated).choice.layers_per_stage == (4, 0)
    assert asked({**gated, "vocab": "1024"}).choice.layers_per_stage == (3, 1)
    assert asked({**gated, "pp": "1", "dp": "8"}).choice.layers_per_stage is None


def test_recipes_have_chunks_of_two_layers() -> None:
    deep = {"layers": "96", "virtual_stages": None, "schedule": None, "tp": "1"}
    wide = {**deep, "pp": "8", "dp": "2", "zero_group": "2", "global_batch": "256"}
    assert asked({**wide, "framework": "NeMo"}).assumed["virtual_stages"] == 6
    assert asked({**wide, "framework": "Megatron-LM"}).assumed["virtual_stages"] == 1


def test_virtual_stages_mean_interleaving() -> None:
    question = asked({"virtual_stages": "2", "schedule": None})
    assert question.choice.schedule == "interleaved"
    question = asked({"virtual_stages": None, "schedule": "interleaved"})
    assert question.assumed["virtual_stages"] == 2


def test_each_framework_has_its_own_defaults() -> None:
    left_out = {"zero": None, "zero_group": None, "sequence_parallel": None}
    flat = {**left_out, "pp": "1", "dp": "8"}
    sharded = asked({**flat, "framework": "torchtitan compile"})
    assert (sharded.assumed["zero"], sharded.choice.zero_group) == (3, 8)
    assert sharded.choice.sequence_parallel
    plain = asked({**left_out, "framework": "Megatron-DeepSpeed"})
    assert (plain.assumed["zero"], plain.choice.zero_group) == (0, 1)
    assert not plain.choice.sequence_parallel


def test_torchtitan_reduces_once_a_step_beside_a_pipeline() -> None:
    """As many micro-batches as there are stages, and weights stay gathered."""
    left_out = {"zero": None, "zero_group": None, "micro_batch": None}
    found = asked({**left_out, "framework": "torchtitan compile"}).choice
    assert found.pp > 1
    assert found.zero == 1
    assert found.micro_batch * found.dp * found.pp * found.virtual_stages == 64


def test_a_framework_nobody_knows_is_said() -> None:
    question = asked({"framework": "Alpa"})
    assert question.assumed["framework"] == "meshwright"
    assert "'Alpa' is not known" in question.warnings[0]


@pytest.mark.parametrize(
    ("kernel", "flash", "priced_as"),
    [
        ("naive", False, "materialised"),
        ("fused-softmax", False, "fused-softmax"),
        ("flash-1", True, "flash-1"),
        ("flash-2", True, "flash-2"),
    ],
)
def test_the_kernel_chooses_the_software(
    kernel: str, flash: bool, priced_as: str
) -> None:
    question = asked({"attention_kernel": kernel, "flash_attention": None})
    framework = question.machine.framework
    assert question.choice.flash_attention is flash
    assert (
        framework.kernels.flash if flash else framework.kernels.unfused
    ) == priced_as


def test_the_fused_norm_flag_reaches_the_software() -> None:
    assert not asked({"fused_norm": "n"}).machine.framework.kernels.fused_norm


def test_given_speeds_override_the_catalogue() -> None:
    question = asked({"intra_node_gb_per_s": "150", "inter_node_gbit_per_s": "400"})
    inner, outer = question.machine.island.levels
    assert inner.bytes_per_s == 150 * GB
    assert outer.bytes_per_s == 400 / 8 / 8 * GB  # eight devices share the NICs


def test_a_cluster_is_built_from_device_and_speeds() -> None:
    question = asked({"cluster": "somebody's lab", "gpus_per_node": "4"})
    island = question.machine.island
    assert island.domain == 4
    assert island.levels[1].bytes_per_s == 1600 / 8 / 4 * GB
    assert island.device.name.lower() == "a100-sxm-80gb"


def test_the_device_overrides_that_of_the_cluster() -> None:
    question = asked({"device": "A100-SXM-40GB"})
    assert question.machine.device.name.lower() == "a100-sxm-40gb"


def test_the_shape_wins_over_the_name() -> None:
    spec = asked({"model": "gpt-13b"}).job.spec
    assert isinstance(spec, DecoderSpec)
    assert (spec.layers, spec.hidden) == (4, 1024)


def test_a_catalogue_name_needs_no_shape() -> None:
    shape = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab")
    question = asked({**dict.fromkeys(shape), "model": "gpt-13b", "seq_len": None})
    spec = question.job.spec
    assert isinstance(spec, DecoderSpec)
    assert (spec.layers, spec.hidden, spec.heads) == (40, 5120, 40)
    assert question.assumed["seq_len"] == question.job.seq_len == 2048
    assert question.assumed["layers"] == 40


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"layers": None}, "layers is missing"),
        ({"heads": None}, "heads is missing"),
        ({"seq_len": None}, "seq_len is missing"),
        ({"gpus": None, "dp": None}, "gpus is missing"),
        ({"cluster": None, "device": None}, "cluster is missing"),
        (
            {"cluster": None, "intra_node_gb_per_s": None},
            "intra_node_gb_per_s is missing",
        ),
        (
            {"cluster": None, "inter_node_gbit_per_s": None},
            "inter_node_gbit_per_s is missing",
        ),
        ({"global_batch": None, "micro_batch": None}, "global_batch is missing"),
        ({"gated_mlp": "y", "ffn_hidden": None}, "ffn_hidden is missing"),
        ({"head_dim": None, "heads": "24"}, "head_dim is missing"),
        # A default that does not do is the missing cell's fault.
        ({"micro_batch": None, "global_batch": "6"}, "micro_batch missing"),
    ],
)
def test_a_cell_without_default_is_named(
    changes: dict[str, str | None], missing: str
) -> None:
    assert refused(**changes).startswith(missing)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": "wide"}, "hidden='wide' must be a number"),
        ({"hidden": "1024.5"}, "hidden='1024.5' must be a whole number"),
        ({"gpus": "1e400"}, "gpus='1e400' must be a number"),
        ({"gpus": "1e12"}, "gpus='1e12' must be a whole number from 1 to 10,000,000"),
        ({"tp": "0"}, "tp='0' must be a whole number from 1"),
        ({"dp": "-4"}, "dp='-4' must be a number from 0"),
        ({"layers": "99999999"}, "layers='99999999'"),
        ({"micro_batch": "1024 tokens"}, "micro_batch='1024 tokens' must be"),
        ({"gated_mlp": "maybe"}, "gated_mlp='maybe' must be y or n"),
        ({"inter_node_gbit_per_s": "0"}, "inter_node_gbit_per_s='0' must be more"),
        ({"zero": "4"}, "zero='4' must be a whole number from 0 to 3"),
        ({"precision": "fp12"}, "unknown precision 'fp12'"),
        ({"attention_kernel": "fast"}, "unknown attention_kernel 'fast'"),
        ({"schedule": "zigzag"}, "unknown schedule 'zigzag'"),
        ({"device": "A100-XL", "cluster": None}, "unknown device 'A100-XL'"),
        ({"global_batch": "1e9", "micro_batch": "1"}, "passes a step"),
    ],
)
def test_a_cell_that_cannot_be_is_named(changes: dict[str, str], words: str) -> None:
    assert words in refused(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"experts": "8"}, "expert_ffn_hidden is missing"),
        ({"kind": "moe"}, "experts is missing"),
        ({"kind": "hybrid"}, "kind=hybrid: no column says which layers"),
        ({"kind": "hybrid", "model": "llama3-8b"}, "no hybrid model 'llama3-8b'"),
        ({"offload": "weights"}, "offload 'weights' is not one of"),
        ({"offload": "activations"}, "activations=RATIO"),
        ({"offload": "parameters"}, "needs --zero 3, not 1"),
        ({"ep": "8"}, "ep 8 × etp 1"),
        ({"device": "mixed: V100+T4"}, "device='mixed: V100+T4'"),
        ({"device": "mixed: 2x dgx-a100-80gb + 1x dgx-h10"}, "dgx-h100"),
        ({"device": "mixed: 1x p3.8xlarge + 1x g4dn.12xlarge"}, "16 GPUs asked"),
        ({"recompute": None, "recompute_detail": "by chance"}, "recompute_detail="),
        ({"precision": "nvfp4"}, "does not multiply in nvfp4"),
        ({"attention_kernel": "naive"}, "contradicts flash_attention=y"),
        ({"tp": "4"}, "not gpus=16"),
        ({"tp": "3", "dp": None}, "does not divide gpus=16"),
        ({"zero": "0"}, "zero_group=4 needs zero"),
        ({"heads": "15", "head_dim": "64", "kv_heads": "15"}, "tp=2 does not divide"),
    ],
)
def test_what_is_not_priced_or_not_legal_is_said(
    changes: dict[str, str | None], words: str
) -> None:
    assert words in refused(**changes)


def test_a_hybrid_model_is_the_catalogues_with_the_rows_own_layers() -> None:
    bare = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn_hidden"))
    rest = {"kind": "hybrid", "vocab": None, "gated_mlp": None, "tp": "1", "dp": None}
    sizes = {**bare, **rest, "head_dim": None, "tied_embeddings": None}
    known = model("nemotron-3-nano").spec
    question = asked({**sizes, "model": "Nemotron_3_Nano"})
    assert question.job.spec == known
    cut = {"model": "Qwen3.5-35B-A3B truncated to 8 layers", "layers": "8"}
    graph = asked({**sizes, **cut}).job.graph
    assert graph.counts == {"expert-gated-delta-layer": 6, "expert-layer": 2}


def test_replicas_without_a_sequence_are_more_context_parallelism() -> None:
    """tp 4, cp 2 of 64 GPUs leave 8 replicas for 2 sequences."""
    many = {"gpus": "64", "tp": "4", "pp": "1", "cp": "2", "dp": None, "zero": None}
    many["zero_group"] = None
    question = asked({**many, "global_batch": "2", "micro_batch": "1"})
    assert (question.choice.cp, question.choice.dp) == (8, 2)
    assert "cp 2 leaves 8 replicas 2 sequences: cp 8" in question.warnings
    assert question.assumed["cp"] == 8


def test_alpas_stages_may_be_of_unlike_meshes() -> None:
    """Three stages on eight GPUs: 2, 2 and 4, with layers in proportion; other
    frameworks have none such."""
    bare = dict.fromkeys(("dp", "zero_group", "sequence_parallel", "micro_batch"))
    row = {**bare, "gpus": "8", "tp": "1", "pp": "3", "zero": "0", "layers": "24"}
    text = {**FULL, **row, "framework": "Alpa"}
    cells = {k: v for k, v in text.items() if v}
    run = Run(row=0, asked=cells, measured={}, kept={})
    (one,) = ask_runs([run])
    assert one.error is None
    assert one.layout is not None
    ranks = [list(stage.mesh.ranks) for stage in one.layout.stages]
    assert ranks == [[0, 1], [2, 3], [4, 5, 6, 7]]
    layers = [sum(map(str.isdigit, stage.layers)) for stage in one.layout.stages]
    assert layers == [6, 6, 12]
    (priced,) = price_runs([run])
    assert priced.price is not None
    assert "does not divide gpus=8" in refused(**row)


def test_fine_tuning_trains_what_the_recipe_of_its_framework_does() -> None:
    assert asked().job.adapters is None
    question = asked({"task": "lora", "framework": "NeMo 2.0"})
    assert question.job.adapters == Adapters(rank=8, targets=("qkv",))
    assert question.assumed["lora_rank"] == 8
    assert question.assumed["lora_targets"] == "qkv"
    others = asked({"task": "lora", "framework": "torchtune"}).job.adapters
    assert others == Adapters(rank=16)
    benchmark = asked({"task": "lora", "framework": "NeMo/Megatron-Core (MLPerf)"})
    assert benchmark.job.adapters == Adapters(rank=16, targets=("qkv", "projection"))


def test_a_tpu_comes_in_its_torus() -> None:
    pod = {
        "cluster": None,
        "device": "TPU v4 (32GB)",
        "gpus_per_node": None,
        "intra_node_gb_per_s": None,
        "inter_node_gbit_per_s": None,
    }
    question = asked({**pod, "framework": "MaxText (JAX)"})
    assert question.assumed["cluster"] == "tpu-v4"
    assert question.machine.framework.name == "maxtext"
    assert question.machine.island.domain == 4096
    hosts = asked({**pod, "gpus_per_node": "4"})
    assert hosts.machine.island.domain == 4096  # chips are linked, not hosts
    assert hosts.machine.rates.kin == "generic"


def test_unlike_devices_are_placed_in_the_order_of_their_names() -> None:
    both = "mixed: 1x dgx-h100 (8 H100-80GB) + 1x dgx-a100-80gb (8 A100-80GB)"
    question = asked({"device": both, "cluster": None})
    placement = "ranks 0-7 on H100-SXM-80GB, ranks 8-15 on A100-SXM-80GB"
    assert question.assumed["placement"] == placement
    first, second = question.machine.cluster.islands
    assert (first.gpus, second.gpus) == (8, 8)
    assert first.device.name == "H100-SXM-80GB"
    assert second.levels[-1].bytes_per_s == 25e9  # the row's own 1,600 Gb/s a node


def test_an_unknown_device_is_a_missing_one() -> None:
    assert "cluster is missing" in refused(device="unknown", cluster=None)


def test_what_is_offloaded_is_read_with_its_ratio() -> None:
    assert asked().choice.offload == Offload()
    detail = "none + activation CPU offload ratio 0.355"
    question = asked({"offload": "activations", "recompute_detail": detail})
    assert question.choice.offload == Offload(activations=0.355)
    assert question.assumed["offload_to"] == "cpu"
    both = asked(
        {
            "offload": "optimizer+parameters",
            "zero": "3",
            "pp": "1",
            "dp": "8",
            "zero_group": "8",
            "framework": "DeepSpeed",
        }
    )
    assert both.choice.offload == Offload(optimizer=True, parameters=True)


def test_words_of_a_partial_policy_are_understood() -> None:
    detail = "partial: recompute MLP activation func + norm"
    question = asked({"recompute": None, "recompute_detail": detail})
    assert question.choice.recompute == "cheap-ops"
    some = asked({"recompute": None, "recompute_detail": "selective (some blocks)"})
    assert (some.choice.recompute, some.choice.recompute_layers) == ("full", 1)
    assert some.assumed["recompute_layers"] == 1  # of two in a stage
    unsaid = {"recompute": None, "recompute_detail": "none or selective (not printed)"}
    assert asked(unsaid).assumed["recompute"] == "none"


@pytest.mark.parametrize(
    ("framework", "tp", "vocab"),
    [
        ("Megatron-LM", "1", 50304),
        ("Megatron-LM", "2", 50432),
        ("Megatron-DeepSpeed", "1", 50257),
        ("Megatron-DeepSpeed", "2", 50432),
        ("torchtitan", "1", 50257),
    ],
)
def test_a_vocabulary_is_padded_as_its_framework_does(
    framework: str, tp: str, vocab: int
) -> None:
    question = asked({"vocab": "50257", "framework": framework, "tp": tp, "dp": None})
    spec = question.job.spec
    assert isinstance(spec, DecoderSpec)
    assert spec.vocab == vocab


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("Megatron-Bridge 25.11", "megatron-bridge-25"),
        ("Megatron-Bridge 26.02.01", "megatron-bridge-25"),
        ("Megatron-Bridge 26.04", "megatron-bridge-26.04"),
        ("Megatron-Bridge 26.08", "megatron-bridge"),
        ("SageMaker model parallel", "sagemaker"),
    ],
)
def test_versions_are_told_apart(printed: str, name: str) -> None:
    assert asked({"framework": printed}).machine.framework.name == name


@pytest.mark.parametrize(
    ("framework", "device", "number"),
    [
        ("Sailor (Megatron-DeepSpeed)", "A100-SXM-80GB", "tf32"),
        ("Sailor (Megatron-DeepSpeed)", "V100-SXM-32GB", "fp32"),  # has none
        ("Megatron-DeepSpeed", "A100-SXM-80GB", "fp32"),
    ],
)
def test_nvidias_container_multiplies_fp32_in_tf32(
    framework: str, device: str, number: str
) -> None:
    said = {"precision": "fp32", "flash_attention": None, "attention_kernel": None}
    question = asked({**said, "framework": framework, "device": device})
    assert question.choice.precision == number
    assert ("precision" in question.assumed) is (number == "tf32")
