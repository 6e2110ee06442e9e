"""Rows name models of any family of the catalogue."""

from __future__ import annotations

import pytest

from costmodel.runs.cells import Cells
from costmodel.runs.pricing import Questions
from profiles.errors import MeshwrightError
from profiles.models.catalog import model
from tests.support.full_row import FULL

SHAPE = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab"),
    *("gated_mlp", "tied_embeddings", "seq_len", "kind", "cp"),
)
PLAIN = {"tp": "1", "pp": "2", "dp": "8", "sequence_parallel": ""}


def cells(**changes: str) -> Cells:
    row = {key: value for key, value in FULL.items() if key not in SHAPE}
    row = {**row, **PLAIN, **changes}
    return Cells(text={key: value for key, value in row.items() if value})


@pytest.mark.parametrize("name", ["bert-large", "t5-small", "vit-large", "resnet-50"])
def test_a_model_of_another_family_is_taken_by_its_name(name: str) -> None:
    found = Questions().question(cells(model=name))
    assert found.job.spec == model(name).spec
    assert found.job.seq_len == model(name).seq_len


def test_a_length_that_its_spec_does_not_have_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="197 tokens"):
        Questions().question(cells(model="vit-large", seq_len="512"))


def test_convolutions_are_not_split() -> None:
    with pytest.raises(MeshwrightError, match="convolutions"):
        Questions().question(cells(model="resnet-50", tp="2", dp="4"))
