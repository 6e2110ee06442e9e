"""Contract 1's shardings: what they refuse, and that they come back from JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from costmodel.layout.sharding_spec import (
    InputSharding,
    ModuleSharding,
    OutputSharding,
    ParameterSharding,
    read_shardings,
    sharding_documents,
)
from profiles.errors import InvalidFile, InvalidSpec

STREAM, WIDE = ("batch", "sequence", "hidden"), ("batch", "sequence", "ffn")


def column(**changes: Any) -> ModuleSharding:
    """Megatron's column-split product, after a gather along the sequence."""
    known: dict[str, Any] = {
        "module": "layer.mlp_up",
        "axes": ("dp", "tp"),
        "parameters": {
            "weight": ParameterSharding(dims=("ffn", "hidden"), placed=("whole", "ffn"))
        },
        "inputs": (
            InputSharding(
                tensor="norm",
                dims=STREAM,
                given=("batch", "sequence"),
                wanted=("batch", "whole"),
            ),
        ),
        "output": OutputSharding(
            tensor="up", dims=WIDE, made=("batch", "ffn"), handed=("batch", "ffn")
        ),
    }
    return ModuleSharding(**{**known, **changes})


def test_they_come_back_from_json() -> None:
    text = msgspec.json.encode(sharding_documents([column()]))
    assert read_shardings(msgspec.json.decode(text), what="cache") == (column(),)


@pytest.mark.parametrize(
    ("placed", "says"),
    [
        (("whole",), "1 placements for 2 mesh axes"),
        (("whole", "vocab"), "'vocab'; its dimensions are ffn, hidden"),
        (("whole", "partial"), "a parameter is split or whole"),
    ],
)
def test_what_cannot_be_is_refused(placed: tuple[str, ...], says: str) -> None:
    weight = ParameterSharding(dims=("ffn", "hidden"), placed=placed)
    with pytest.raises(InvalidSpec, match=says):
        column(parameters={"weight": weight})


def test_a_strangers_file_is_refused_by_place() -> None:
    documents = sharding_documents([column()])
    documents[0]["output"]["handed"] = 3
    with pytest.raises(InvalidFile, match=r"\[0\].output.handed"):
        read_shardings(documents, what="layout file")
