"""`profiles.hardware.catalog`: each device and cluster loads, and each number has a
source."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import (
    InvalidFile,
    InvalidSpec,
    MeshwrightError,
    UnknownName,
    Unsupported,
)
from profiles.files import read_json
from profiles.hardware import catalog
from profiles.hardware.catalog import (
    cluster,
    cluster_names,
    device,
    device_names,
    parse_cluster,
)
from profiles.hardware.clusters import Cluster
from profiles.hardware.precisions import Format
from profiles.units import GB, GBIT_BYTES, GiB

# fmt: off
PROMISED = {
    "dgx-a100-80gb", "dgx-a100-40gb", "dgx-h100", "hgx-h200", "dgx-b200", "dgx-b300",
    "gb200-nvl72", "gb300-nvl72", "dgx-v100-32gb", "dgx-v100-16gb", "p3.16xlarge",
    "p4d.24xlarge", "p5.48xlarge", "a100-pcie", "rtx4090-8x", "l40s-8x", "mi300x-8x",
    "mi325x-8x", "mi350x-8x", "mi355x-8x", "h100-pcie", "g4dn.12xlarge", "cpu",
}
# fmt: on
FILES = sorted(catalog.DATA.rglob("*.json"))


def numbers_without_source(value: object, covered: bool, place: str) -> Iterator[str]:
    """Where numbers stand for which no object around them gives a source.

    A figure (an object with a unit) has its own, whatever stands around it.
    """
    if isinstance(value, dict):
        own = bool(str(value.get("source", "")).strip())
        covered = own or (covered and "unit" not in value)
        for key, inner in value.items():
            yield from numbers_without_source(inner, covered, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers_without_source(inner, covered, f"{place}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool) and not covered:
        yield place


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_number_of_the_catalogue_has_a_source(path: Path) -> None:
    document = read_json(path, what="catalogue")
    assert isinstance(document, dict)
    document.pop("defaults", None)  # they are merged into models that have one
    assert list(numbers_without_source(document, False, path.stem)) == []


def test_a_number_without_a_source_would_be_seen() -> None:
    holey = {"a": {"source": "paper", "n": 1}, "b": [{"source": " ", "n": 2}]}
    assert list(numbers_without_source(holey, False, "x")) == ["x.b[0].n"]
    figure = {"source": "paper", "power": {"value": 1, "unit": "W"}}
    assert list(numbers_without_source(figure, False, "x")) == ["x.power.value"]


@pytest.mark.parametrize("name", device_names())
def test_a_device_is_sound(name: str) -> None:
    found = device(name)
    assert found.name == name
    # What is offered is within 12 % of what is sold, be that GB or GiB.
    assert 0.88 * found.memory.value <= found.capacity_bytes / GiB
    assert found.capacity_bytes / GiB <= found.memory.value
    assert found.kin is None or device(found.kin).name == found.kin != name
    rates = [found.peak[number].si for number in Format if number in found.peak]
    assert rates == sorted(rates), "narrower formats are no slower"
    for figure in (found.memory_bandwidth, found.host_link):
        assert 1 * GB < figure.si < 20_000 * GB


def test_old_devices_have_no_new_formats() -> None:
    assert set(device("v100").peak) == set(device("t4").peak) == {"fp32", "fp16"}
    assert set(device("p40").peak) == set(device("cpu").peak) == {"fp32"}
    assert "fp8" not in device("a100").peak
    assert "nvfp4" not in device("h100").peak


def test_a_device_is_found_in_any_case_and_by_alias() -> None:
    assert device("A100-80GB") is device("a100-sxm-80gb") is device("A100-SXM-80GB")
    with pytest.raises(UnknownName, match=r"did you mean .*h100-sxm-80gb"):
        device("h100-sxm-80g")


@pytest.mark.parametrize("names", [device_names(), cluster_names()], ids=["dev", "cl"])
def test_names_are_there_once(names: tuple[str, ...]) -> None:
    lower = [name.lower() for name in names]
    assert len(set(lower)) == len(lower) > 20


def test_aliases_collide_with_nothing() -> None:
    assert _collisions("devices", "name", None) == []
    assert _collisions("clusters", "name", "clusters") == []
    assert _collisions("models", "name", "models") == []


def _collisions(folder: str, key: str, inside: str | None) -> list[str]:
    """Names or aliases that stand for two things, and aliases of nothing."""
    names: list[str] = []
    aliases: list[tuple[str, str]] = []
    for path in FILES:
        if path.parent.name != folder:
            continue
        file = json.loads(path.read_text(encoding="utf-8"))
        for entry in file[inside] if inside else [file]:
            names.append(entry[key].lower())
            if inside is None:
                aliases += [(alias, entry[key].lower()) for alias in entry["aliases"]]
        if inside:
            aliases += file["aliases"].items()
    called = names + [alias for alias, _ in aliases]
    twice = [name for name in called if called.count(name) > 1]
    return twice + [
        alias for alias, name in aliases if name not in names or alias != alias.lower()
    ]


@pytest.mark.parametrize("name", cluster_names())
def test_a_cluster_is_sound(name: str) -> None:
    found = cluster(name)
    assert found.name == name == name.lower()
    assert found.source
    inner, outer = found.island.levels[0], found.island.levels[-1]
    torus = found.island.levels[0].kind == "ici"  # wider than its hosts
    assert torus or found.island.domain == found.island.devices_per_node
    assert inner.bytes_per_s >= outer.bytes_per_s, "the inner link is the faster"
    assert all(1e-6 <= level.latency_s <= 1e-4 for level in found.island.levels)
    written = json.loads(json.dumps(asdict(found)))
    assert parse_cluster(written, what="copy") == found


def test_every_promised_cluster_is_there() -> None:
    assert set(cluster_names()) >= PROMISED
    assert cluster(catalog.DEFAULT_CLUSTER).device == device("A100-SXM-80GB")


def test_kinds_of_network_are_told_apart() -> None:
    kinds = {cluster(name).island.levels[-1].kind for name in cluster_names()}
    assert kinds == {
        *("infiniband", "roce", "efa", "ena", "ethernet", "omni-path", "slingshot"),
        "loopback",
    }


def test_nvl72_is_one_domain() -> None:
    found = cluster("gb200-nvl72")
    assert found.island.domain == 72
    assert found.island.levels[-1].bytes_per_s * 72 == 28_800 * GBIT_BYTES


# Rows of these clusters whose nodes or links differ among themselves: (cluster, what).
DIFFER = {("dgx-2", "inter"), ("p3.16xlarge", "device")}


def test_the_clusters_of_published_runs() -> None:
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        pytest.skip("MESHWRIGHT_DATA does not name the folder of measurements")
    with (Path(folder) / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["cluster"]]
    wrong = {
        (row["cluster"], what)
        for row in rows
        for what in _differences(cluster(row["cluster"]), row)
    }
    assert wrong == DIFFER
    assert {row["device"] for row in rows} <= set(device_names())


def _differences(found: Cluster, row: dict[str, str]) -> Iterator[str]:
    island, nodes = found.island, row["gpus_per_node"]
    if row["device"] != found.device.name:
        yield "device"
    intra = row["intra_node_gb_per_s"]
    if intra and float(intra) * GB != island.levels[0].bytes_per_s:
        yield "intra"
    whole = not nodes or int(nodes) == island.devices_per_node
    if whole and row["inter_node_gbit_per_s"]:
        rate = float(row["inter_node_gbit_per_s"]) * GBIT_BYTES
        each = rate / island.devices_per_node
        if abs(each - island.levels[-1].bytes_per_s) > 1e-4 * each:
            yield "inter"


def test_an_unknown_cluster_is_told_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean dgx-h100"):
        cluster("DGX-H1OO")
    with pytest.raises(Unsupported, match="--profile"):
        cluster("local")
    assert cluster("DGX-A100") is cluster("dgx-a100-80gb")


def written(**changes: Any) -> dict[str, Any]:
    """A user's cluster file: three nodes of four A100."""
    figure = {"value": 25, "unit": "GB/s", "source": "measured here"}
    hop = {"value": 8, "unit": "us", "source": "measured here"}
    inner = {"name": "node", "kind": "pcie", "devices": 4}
    outer = {"name": "network", "kind": "roce", "devices": None}
    link = {"bandwidth": figure, "latency": hop}
    island = {
        "device": "a100-40gb",
        "devices_per_node": 4,
        "nodes": 3,
        "levels": [{**inner, **link}, {**outer, **link}],
    }
    return {"name": "mine", "source": "ours", "islands": [{**island, **changes}]}


def figure_in(unit: str, value: float = 25) -> dict[str, Any]:
    return {"value": value, "unit": unit, "source": "measured here"}


def link_with(**changes: Any) -> dict[str, Any]:
    """The same file, its innermost link changed."""
    levels = written()["islands"][0]["levels"]
    return written(levels=[{**levels[0], **changes}, levels[1]])


def with_device(**changes: Any) -> dict[str, Any]:
    """The same file, its device spelled out and changed."""
    return written(device={**asdict(device("a100-40gb")), **changes})


@pytest.mark.parametrize(
    "field", ["memory", "usable_memory", "memory_bandwidth", "host_link", "power"]
)
def test_a_device_is_measured_in_its_units(field: str) -> None:
    spelled = asdict(device("a100-40gb"))
    unlike = "GB" if field == "power" else "W"
    wrong = written(device={**spelled, field: figure_in(unlike)})
    with pytest.raises(InvalidSpec, match=f"{field} is 25 {unlike}; it is measured in"):
        parse_cluster(wrong, what="file")


def test_a_users_file_names_its_device_or_spells_it_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(written()))
    found = cluster(str(path))
    assert (found.name, found.gpus, found.device) == ("mine", 12, device("a100-40gb"))
    spelled = asdict(device("a100-40gb"))
    path.write_text(json.dumps(written(device=spelled)))
    assert cluster(str(path)) == found


@pytest.mark.parametrize(
    ("document", "error", "said"),
    [
        ([], InvalidFile, "must be an object"),
        ({"name": "x"}, InvalidFile, "missing required field islands"),
        ({**written(), "color": 1}, InvalidFile, "unknown key color"),
        (written(nodse=1), InvalidFile, "nodse in islands[0]; did you mean nodes?"),
        (written(device="a100-81gb"), UnknownName, "did you mean a100-80gb"),
        (written(device=4), InvalidFile, "islands[0].device: expected object"),
        (written(levels=[]), InvalidSpec, "last level"),
        (
            written(devices_per_node=0),
            InvalidSpec,
            "devices_per_node of an island must be between 1",
        ),
        (
            written(devices_per_node=6),
            InvalidSpec,
            "domains of 4 and 6 devices overlap",
        ),
        (written(nodes=0), InvalidSpec, "nodes of an island must be between 1 and"),
        (written(nodes=-3), InvalidSpec, "nodes of an island must be between 1 and"),
        (written(host_memory=figure_in("us")), InvalidSpec, "measured in bytes"),
        (link_with(bandwidth=figure_in("us")), InvalidSpec, "bytes a second"),
        (link_with(latency=figure_in("GB/s")), InvalidSpec, "one of us, s"),
        (link_with(bandwidth=figure_in("GB/s", 1e308)), InvalidSpec, "got inf"),
        (link_with(latency=figure_in("s", 1e300)), InvalidSpec, "between 0 and 10 s"),
        (with_device(cost=figure_in("USD/h", 1e300)), InvalidSpec, "dollars an hour"),
        (with_device(host_link=figure_in("GB/s", 0)), InvalidSpec, "host_link is 0"),
        (
            with_device(peak={"bf16": figure_in("TFLOP/s", 0)}),
            InvalidSpec,
            "peak.bf16 is 0; give a value above 0",
        ),
        (written(devices_per_node=1.5), InvalidFile, "expected int"),
        ({**written(), "name": "two\nlines"}, InvalidSpec, "printable"),
        ({"name": "x", "islands": []}, InvalidSpec, "no islands"),
        ({"name": "x", "islands": 2 * written()["islands"]}, InvalidSpec, "between"),
    ],
)
def test_a_wrong_cluster_file_is_refused(
    tmp_path: Path, document: object, error: type[Exception], said: str
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    with pytest.raises(error) as caught:
        cluster(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def anything(like: object) -> st.SearchStrategy[Any]:
    """JSON values, with the keys of *like* where objects are made."""
    keys = [*sorted(set(_keys(like))), "source", "x"]
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(10**25), 10**25)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=6)
        | st.sampled_from(["cpu", "GB/s", "us", "nvlink", "A100-SXM-80GB", ""])
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(keys), inner, max_size=6)
        ),
        max_leaves=25,
    )


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


@st.composite
def mutants(draw: st.DrawFn) -> object:
    """A sound cluster file with one value, anywhere, exchanged."""
    document = written(device=json.loads(json.dumps(asdict(device("h100")))))
    place: Any = document
    while True:
        key = draw(
            st.sampled_from(
                sorted(place) if isinstance(place, dict) else range(len(place))
            )
        )
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            place[key] = draw(anything(document))
            return document
        place = inner


@given(mutants() | anything(written()))
def test_any_document_is_a_cluster_or_refused(document: object) -> None:
    try:
        found = parse_cluster(document, what="fuzz")
    except MeshwrightError as error:
        said = str(error)
    else:
        said = found.name
        copied = json.loads(json.dumps(asdict(found)))
        assert parse_cluster(copied, what="copy") == found
    assert "\n" not in said


@given(st.binary(max_size=100) | mutants().map(lambda one: json.dumps(one).encode()))
def test_any_file_is_a_cluster_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "cluster.json"
    path.write_bytes(content)
    try:
        said = cluster(str(path)).name
    except MeshwrightError as error:
        said = str(error)
    assert "\n" not in said
