"""What is made again, in the words that `--recompute` takes."""

from __future__ import annotations

import pytest

from costmodel.layout.retention import operator_of, preset
from profiles.models.catalog import model
from profiles.models.job import Job


@pytest.mark.parametrize(
    "name", ["gpt-13b", "llama3-8b", "mixtral-8x7b", "deepseek-v3"]
)
def test_what_an_operator_makes_is_called_by_its_name(name: str) -> None:
    """So that what `plan` says is made again can be asked for."""
    job = Job(model=name, spec=model(name).spec, seq_len=128, global_batch=8)
    for block, _ in job.graph.runs:
        for operator in block.operators:
            (made,) = preset(operator.name, block).recomputed
            assert operator_of(made) == operator.name
