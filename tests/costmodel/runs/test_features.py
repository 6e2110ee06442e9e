"""Features of runs: in words, of every kind of question."""

from __future__ import annotations

from costmodel.runs.cells import Cells
from costmodel.runs.comparison import features
from costmodel.runs.pricing import Questions

GPT = {
    "model": "gpt-13b",
    "cluster": "dgx-a100-80gb",
    "gpus": "16",
    "tp": "8",
    "pp": "1",
    "global_batch": "32",
    "framework": "Megatron-LM",
}


def test_what_is_left_out_is_the_frameworks() -> None:
    asked = {**GPT, "recompute": "full", "attention_kernel": "fused-softmax"}
    assert features(Questions().question(Cells(text=asked))) == {
        "recompute": "full",
        "attention": "fused-softmax",
        "zero": "0",
        "tp": "> 1",
        "pp": "1",
        "cp": "1",
        "precision": "bf16",
        "nodes": "several",
        "gpus": "9-128",
    }


def test_unlike_devices_have_features_too() -> None:
    mixed = {
        "model": "gpt-350m",
        "gpus": "16",
        "tp": "1",
        "pp": "4",
        "device": "mixed: 3x p3.8xlarge (12 V100-16GB) + 1x g4dn.12xlarge (4 T4-16GB)",
        "global_batch": "32",
        "framework": "Megatron-LM",
        "precision": "fp16",
    }
    assert features(Questions().question(Cells(text=mixed)))["gpus"] == "9-128"
