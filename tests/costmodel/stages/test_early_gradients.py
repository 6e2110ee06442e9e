"""Where backward is split, the table's gradient is made and sent with I, not with W."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.layout.strategy import Uniform, spell_out
from costmodel.stages.layout_cost import LayoutPricer
from costmodel.stages.stage_cost import StagePrice
from profiles.models.spec import DecoderSpec
from tests.support.problems import local
from tests.support.sampled import job

SPLIT = Uniform(
    pp=2, dp=2, zero_group=2, micro_batch=1, schedule="zb-h1", precision="fp32"
)


def first_stage(zero: int, vocab: int) -> StagePrice:
    asked = job("gpt-tiny")
    assert isinstance(asked.spec, DecoderSpec)
    spec = replace(asked.spec, vocab=vocab, tied_embeddings=False)
    asked = replace(asked, spec=spec)
    layout = spell_out(replace(SPLIT, zero=zero), asked.graph, asked.global_batch)
    return LayoutPricer(job=asked, layout=layout, machine=local()).stages()[0]


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_a_larger_table_makes_i_longer_and_not_w(zero: int) -> None:
    """Where nothing hides: on ranks that share cores. What a message costs beside its
    bytes is shared out by bytes."""
    small, large = first_stage(zero, 2**10), first_stage(zero, 2**16)
    longer = large.backward_s - small.backward_s
    assert longer > 0.1 * small.backward_s
    assert abs(large.weight_s - small.weight_s) < 0.05 * longer
