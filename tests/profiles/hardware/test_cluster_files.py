"""The JSON Schema of cluster files says what `parse_cluster` takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError

from profiles.errors import MeshwrightError
from profiles.hardware import Figure, cluster, parse_cluster
from profiles.hardware.catalog import cluster_names
from profiles.hardware.cluster_files import (
    FIGURES,
    MEANINGS,
    cluster_document,
    cluster_schema,
)
from profiles.hardware.clusters import OF_A_NODE, Device, Island, Level

SCHEMA = Draft202012Validator(cluster_schema())
Document = dict[str, Any]


def plain(name: str) -> Document:
    document: Document = json.loads(json.dumps(cluster_document(cluster(name))))
    return document


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(cluster_schema())


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_of_the_catalogue_fits_and_comes_back(name: str) -> None:
    document = plain(name)
    SCHEMA.validate({"$schema": "./cluster.schema.json", **document})
    assert parse_cluster({"$schema": "any", **document}, what="it") == cluster(name)


def test_every_field_has_a_meaning_and_every_figure_a_unit() -> None:
    for kind, meanings in MEANINGS.items():
        assert [*meanings] == [one.name for one in fields(kind)]
    for kind in (Island, Level, Device):
        for one in fields(kind):
            if one.type in ("Figure", "Figure | None"):
                assert one.name in FIGURES


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: d.pop("islands"),
        lambda d: d.update(islands=[]),
        lambda d: d.update(colour="red"),
        lambda d: d["islands"][0].pop("levels"),
        lambda d: d["islands"][0].update(device="H1000"),
        lambda d: d["islands"][0].update(devices_per_node="eight"),
        lambda d: d["islands"][0].update(nodes=0),
        lambda d: d["islands"][0]["levels"][0].update(speed=1),
        lambda d: d["islands"][0]["levels"][0]["bandwidth"].update(unit="GB"),
        lambda d: d["islands"][0]["levels"][0]["latency"].pop("source"),
        lambda d: d["islands"][0].update(mtbf={"value": 9, "unit": "W", "source": ""}),
    ],
)
def test_schema_and_reader_refuse_the_same(wrong: Callable[[Document], Any]) -> None:
    document = plain("dgx-h100")
    wrong(document)
    with pytest.raises(ValidationError):
        SCHEMA.validate(document)
    with pytest.raises(MeshwrightError):
        parse_cluster(document, what="it")


@given(data=st.data())
def test_what_the_reader_takes_fits_the_schema(data: st.DataObject) -> None:
    """With a value of any kind in any place."""
    document = deepcopy(plain("dgx-a100-80gb"))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        deeper = isinstance(place[key], dict | list) and place[key]
        if not deeper or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(
        st.none()
        | st.booleans()
        | st.integers(-2, 9)
        | st.text(max_size=4)
        | st.just([])
    )
    with suppress(MeshwrightError):
        parse_cluster(document, what="it")
        SCHEMA.validate(document)


def test_a_node_may_have_its_own_price_power_and_failures() -> None:
    document = plain("dgx-h100")
    island = cluster("dgx-h100").island
    assert island.device_power_w == island.device.power.si  # type: ignore[union-attr]
    for name, unit in (("price", "USD/h"), ("power", "W"), ("mtbf", "days")):
        document["islands"][0][name] = {"value": 80.0, "unit": unit, "source": "ours"}
    found = parse_cluster(document, what="it").island
    assert found.device_dollars_per_h == found.device_power_w == 10.0
    assert found.mtbf is not None
    assert found.mtbf.si == 80 * 86400
    assert {"price", "power", "mtbf"} <= {*OF_A_NODE}
    bare = replace(island, device=replace(island.device, cost=None, power=None))
    assert bare.device_dollars_per_h is bare.device_power_w is None
    assert Figure(value=2, unit="h", source="").si == 7200
