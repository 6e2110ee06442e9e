"""Groups of options: each option has its field, each field its option."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from costmodel.options.pins import Pins, layout_options
from profiles.commandline.commands import command
from profiles.commandline.options import JobOptions, given, job_options
from profiles.errors import InvalidQuestion


def parsed(argv: str) -> tuple[JobOptions, Pins]:
    seen: list[Any] = []

    @command("trial", example="trial")
    @job_options
    @layout_options
    def trial(job: JobOptions, pins: Pins, *, as_json: bool) -> None:
        seen.extend((job, pins))

    assert trial.run(argv.split()) == 0
    return seen[0], seen[1]


def test_nothing_given_is_all_left_out() -> None:
    job, pins = parsed("")
    assert (job, pins) == (JobOptions(), Pins())
    assert given(job) == given(pins) == {}


def test_the_whole_question() -> None:
    job, _ = parsed(
        "--model gpt-13b --cluster dgx-h100 --gpus 64 --seq-len 2048 --global-batch 8 "
        "--optimizer adamw --precision bf16 --grad-dtype fp32 --framework fsdp2 "
        "--profile a.json --profile b.json"
    )
    assert given(job) == {
        "model": "gpt-13b",
        "cluster": "dgx-h100",
        "gpus": 64,
        "seq_len": 2048,
        "global_batch": 8,
        "optimizer": "adamw",
        "precision": "bf16",
        "grad_dtype": "fp32",
        "framework": "fsdp2",
        "profile": (Path("a.json"), Path("b.json")),
    }


def test_the_whole_layout() -> None:
    _, pins = parsed(
        "--tp 1 --pp 2 --dp 3 --cp 4 --ep 5 --etp 6 --micro-batch 7 --micro-batches 8 "
        "--schedule 1f1b --virtual-stages 9 --zero 0 --zero-group 10 "
        "--sequence-parallel --cp-kind ring --recompute norm,mlp --recompute-layers 0 "
        "--no-flash-attention --offload optimizer --offload-to cpu --overlap tp,grad "
        "--imbalance 1.5 --bucket-mb 25"
    )
    assert given(pins) == {
        "tp": 1,
        "pp": 2,
        "dp": 3,
        "cp": 4,
        "ep": 5,
        "etp": 6,
        "micro_batch": 7,
        "micro_batches": 8,
        "schedule": "1f1b",
        "virtual_stages": 9,
        "zero": 0,
        "zero_group": 10,
        "sequence_parallel": True,
        "cp_kind": "ring",
        "recompute": "norm,mlp",
        "recompute_layers": 0,
        "flash_attention": False,
        "offload": "optimizer",
        "offload_to": "cpu",
        "overlap": "grad,tp",
        "imbalance": 1.5,
        "bucket_mb": 25.0,
    }


def test_a_missing_option_is_named_with_an_example() -> None:
    with pytest.raises(InvalidQuestion, match=r"--model is missing.*--model gpt-13b"):
        JobOptions(gpus=64).require("gpus", "model")
    JobOptions(gpus=64).require("gpus")


def test_help_shows_every_option_of_a_group() -> None:
    @command("trial", example="trial")
    @layout_options
    def trial(pins: Pins, *, as_json: bool) -> None: ...

    shown = trial.get_help(click.Context(trial))
    for item in fields(Pins):
        assert f"--{item.name.replace('_', '-')}" in shown
