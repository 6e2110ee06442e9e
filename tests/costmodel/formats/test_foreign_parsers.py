"""Exports read by the targets' own parsers, where their packages are installed.

None of them is needed otherwise, so each test is skipped where its package is not.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from costmodel.formats.deepspeed import model_states_bytes
from costmodel.formats.setup import run_of
from costmodel.formats.targets import exports
from costmodel.layout.offload import Offload
from costmodel.layout.strategy import Uniform, spell_out
from costmodel.simulation.serialization import Options
from profiles.models.catalog import model

pytestmark = pytest.mark.filterwarnings("ignore")
SHARDED = Uniform(dp=8, micro_batch=4, zero=3, zero_group=8, recompute="full")
AWAY = Uniform(
    dp=8, micro_batch=4, zero=2, zero_group=8, offload=Offload(optimizer=True)
)
HYBRID = Uniform(dp=16, micro_batch=4, zero=2, zero_group=8)
PLAIN = Uniform(dp=8, micro_batch=4, zero=0, precision="amp-bf16")


def written(folder: Path, target: str, choice: Uniform, name: str = "gpt-350m") -> Path:
    job = model(name).job(global_batch=512)
    layout = spell_out(choice, job.graph, job.global_batch)
    run = run_of(job, layout, 8, Options(), {})
    for file, text in exports(run, [target])[target].items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("choice", [SHARDED, AWAY, HYBRID, PLAIN])
def test_accelerate_reads_its_file(tmp_path: Path, choice: Uniform) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate.commands.config.config_args import ClusterConfig

    folder = written(tmp_path, "accelerate", choice)
    found = ClusterConfig.from_yaml_file(str(folder / "accelerate.yaml"))
    assert found.num_processes == choice.gpus
    kinds = {3: "FSDP", 2: "FSDP", 0: "MULTI_GPU"}
    kind = "DEEPSPEED" if choice.offload.anything else kinds[choice.zero]
    assert found.distributed_type.value == kind


@pytest.mark.slow
@pytest.mark.parametrize("choice", [SHARDED, AWAY, Uniform(dp=8, pp=2, zero_group=8)])
def test_deepspeed_reads_its_file(tmp_path: Path, choice: Uniform) -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    from deepspeed.runtime.config import DeepSpeedConfig

    folder = written(tmp_path, "deepspeed", choice)
    document = json.loads((folder / "ds_config.json").read_text("utf-8"))
    document["train_batch_size"] //= choice.dp  # this process is alone
    found = DeepSpeedConfig(document)
    assert found.zero_config.stage == choice.zero
    assert found.train_micro_batch_size_per_gpu == choice.micro_batch
    away = found.zero_config.offload_optimizer
    assert (away is not None) == choice.offload.optimizer


@pytest.mark.slow
@pytest.mark.parametrize("away", [False, True])
def test_deepspeed_s_estimators_say_the_same(away: bool) -> None:
    """Row I2, against the functions themselves."""
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    from deepspeed.runtime.zero.stage3 import (
        estimate_zero3_model_states_mem_needs as third,
    )
    from deepspeed.runtime.zero.stage_1_and_2 import (
        estimate_zero2_model_states_mem_needs as second,
    )

    offload = Offload(optimizer=away)
    for total, largest, nodes in (
        (1_313_722_368, 104_857_600, 1),
        (10**9 + 7, 12345, 3),
    ):
        gpus = 8 * nodes
        own = model_states_bytes(total, largest, zero=2, gpus=gpus, offload=offload)
        assert own == second(total, 8, nodes, away)[1]
        own = model_states_bytes(total, largest, zero=3, gpus=gpus, offload=offload)
        assert own == third(total, largest, 8, nodes, away, False)[1]


@pytest.mark.slow
def test_transformers_reads_its_files(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from transformers import HfArgumentParser, TrainingArguments

    for number, choice in enumerate((SHARDED, PLAIN)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = written(folder, "trainer", choice) / "training_arguments.json"
        document = {**json.loads(path.read_text("utf-8")), "use_cpu": True}
        (found,) = HfArgumentParser(TrainingArguments).parse_dict(document)
        assert found.per_device_train_batch_size == choice.micro_batch
        assert found.gradient_accumulation_steps == 512 // choice.dp // 4
        assert bool(found.fsdp) == (choice.zero == 3)


@pytest.mark.slow
def test_the_trainer_s_deepspeed_reads_its_file(tmp_path: Path) -> None:
    """Row I3: it loads in `HfDeepSpeedConfig`."""
    for name in ("transformers", "accelerate", "deepspeed"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    from transformers.integrations import HfDeepSpeedConfig

    folder = written(tmp_path, "trainer", AWAY)
    found = HfDeepSpeedConfig(str(folder / "ds_config.json"))
    assert found.is_offload()
    assert not found.is_zero3()
    assert found.get_value("train_batch_size") == "auto"


@pytest.fixture
def torchtitan_manager() -> Iterator[Any]:
    """torchtitan's reader of TOML, without the kernels that its models load."""
    spec = importlib.util.find_spec("torchtitan")
    where = spec and spec.submodule_search_locations
    if not where or not Path(where[0], "config", "job_config.py").exists():
        pytest.skip("torchtitan up to release 0.2 is not installed")
    package = types.ModuleType("torchtitan")
    package.__path__ = list(where)
    sys.modules["torchtitan"] = package
    from torchtitan.config.manager import ConfigManager

    yield ConfigManager()
    for name in [one for one in sys.modules if one.split(".")[0] == "torchtitan"]:
        del sys.modules[name]


@pytest.mark.slow
def test_torchtitan_reads_its_file(tmp_path: Path, torchtitan_manager: Any) -> None:
    choice = Uniform(
        tp=2,
        pp=4,
        dp=4,
        cp=2,
        zero_group=4,
        sequence_parallel=True,
        recompute="full",
        schedule="interleaved",
        virtual_stages=2,
    )
    folder = written(tmp_path, "torchtitan", choice, "llama3-8b")
    file = str(folder / "torchtitan.toml")
    found = torchtitan_manager.parse_args(["--job.config_file", file])
    parallel = found.parallelism
    assert (parallel.tensor_parallel_degree, parallel.pipeline_parallel_degree) == (
        2,
        4,
    )
    assert found.activation_checkpoint.mode == "full"
    assert found.training.global_batch_size == 512
